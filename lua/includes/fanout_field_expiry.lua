-- Whether the server can give a field of a hash an expiry as it sets it (HSETEX): Redis from 8.0, Valkey from 9.0,
-- which says that it is Redis 7.2. Where a user may not use the command, the message is stored without one.
local HAS_FIELD_EXPIRY = redis.VALKEY_VERSION_NUM and redis.VALKEY_VERSION_NUM >= 0x090000
    or not redis.VALKEY_VERSION_NUM and (redis.REDIS_VERSION_NUM or 0) >= 0x080000
