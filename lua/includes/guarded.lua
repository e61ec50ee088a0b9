-- Reads the session's fields, and returns the error if the caller may not write to the session.
local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
--- @include "includes/guarded_fields"
