"""Keep tenants to their limits, exactly, in one process or in many.

- `tariff` has what a request is estimated at and charged, and what its caller is told;
- `store` says what is asked of whoever keeps the counters: `memory` keeps them in this process,
  `redis_store` in Redis or Valkey, where one Lua script does all of it;
- `local` meters one process, `shared` many: `shared_lease` is what one call holds, `outbox` what is
  still to be asked, `breaker` says when the store counts as away, `here` has this replica's share
  meanwhile;
- `ledger` holds who used what, by day and model, for good;
- `metering` is all of it, made from a configuration.

Words: a *lease* is what one request holds from its admission to its settlement; to *settle* is to
put what it used in the place of what was estimated, once. The arithmetic is `policies.quota`.
"""
