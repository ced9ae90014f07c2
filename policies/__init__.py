"""Answer three questions: which one, who first, how much.

Pure, synchronous answers to scheduling questions: events and `now` in, decisions out. `contracts`
holds the nouns everything else speaks in (`Request`, `Outcome`, `EndpointView`, `Placement`), the
error tree, and the protocols a plugin implements:

- ordering: who of those waiting goes next;
- filter: which endpoints may serve a request;
- score: how good each of them is, 0 to 1;
- pick: which one of the scored gets it.

`registry` maps the names used in the YAML to them. Imports nothing but `prefixcache`.
"""
