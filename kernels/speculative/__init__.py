"""Speculative decoding: drafters that need no training, a reference engine, trained heads.

The modules that a plugin needs (`contexts`, `automaton`, `draft_length`, `drafter`, `store`), the
stores and the doctor use the standard library and numpy, which engines and the gateway have; the
reference engine and the training use torch.

Words: a *draft* is a guess at the next tokens, a chain or a tree; the *target* is the model whose
output must not change; to *verify* is to run the target over a draft once; *accepted* are the
guessed tokens kept; a *bonus* is the token that verifying yields by itself; a *context* is the text
before a place; a *store* is a file of past answers, searchable by context.
"""

__all__: list[str] = []
