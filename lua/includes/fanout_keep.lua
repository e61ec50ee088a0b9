--- @include "includes/fanout_field_expiry"
--- @include "includes/fanout_late"
-- Keeps the payloads of 1 to 1,000 messages beyond an instant, if they have their own expiry.
local function keep_payloads(messages_key, until_ms, ids)
    if HAS_FIELD_EXPIRY then
        local ends_ms = string.format('%d', until_ms + LATE_MS)
        redis.pcall('HPEXPIREAT', messages_key, ends_ms, 'GT', 'FIELDS', #ids, unpack(ids))
    end
end

-- Keeps 1 to 1,000 messages at least until an instant; never makes an expiry earlier.
local function keep(keys, until_ms, ids)
    local text = string.format('%d', until_ms)
    for _, id in ipairs(ids) do
        redis.call('ZADD', keys.expiries, 'XX', 'GT', text, id)
    end
    keep_payloads(keys.messages, until_ms, ids)
end
