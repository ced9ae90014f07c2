"""Keep tenants to their limits, exactly, in one process or in many.

- `store` says what is asked of whoever keeps the counters, `memory` keeps them in this process and
  `redis_store` in Redis or Valkey, where one Lua script does all of it;
- `meter` stands between a call and its store: estimate, lease, settlement, headers;
- `local` and `shared` are its two kinds, for one process and for many; `breaker` says when Redis
  counts as away and when it is back;
- `ledger` holds who used what, by day and model, for good.

Words: a *lease* is what one request holds from its admission to its settlement; to *settle* is to
put what it used in the place of what was estimated, once. The arithmetic is `policies.quota`.
"""
