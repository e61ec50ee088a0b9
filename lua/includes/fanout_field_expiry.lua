-- Whether the server can set a hash field with an expiry (HSETEX): Redis from 8.0, and Valkey from 9.0, which reports
-- itself as Redis 7.2. If the user may not use the command, the message is stored without an expiry.
local HAS_FIELD_EXPIRY = redis.VALKEY_VERSION_NUM and redis.VALKEY_VERSION_NUM >= 0x090000
    or not redis.VALKEY_VERSION_NUM and (redis.REDIS_VERSION_NUM or 0) >= 0x080000
