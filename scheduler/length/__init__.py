"""Length prediction: how many tokens will the answer have?

The `LengthPredictor` protocol, and the constant that stands in until one is configured.
"""
