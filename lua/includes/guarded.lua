-- What is noted of the session, as fields; who may not write to it is answered.
local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
--- @include "includes/guarded_fields"
