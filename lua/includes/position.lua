--- @include "includes/integers"
-- Returns the sequence that is delivered next, whether that is another place than the one asked for, and the oldest
-- sequence (0: none); nothing when the text does not parse. Instants rise with sequences, so a count of earlier rows is
-- a rank. A place does not exist if its messages were removed: an instant with no rows after it where there were some,
-- or a sequence up to the last removed one, after which a removed row cannot be told from an overwritten one.
local function position(text, order_key, times_key, sequence, last_ms, last_removed)
    local kind, number = string.match(text, '^(%l+):?(.*)$')
    local oldest = tonumber(redis.call('ZRANGE', order_key, '0', '0', 'WITHSCORES')[2] or '0')
    local first, last = oldest > 0 and oldest or sequence + 1, sequence + 1
    if text == 'earliest' then
        return first, 0, oldest
    elseif text == 'latest' then
        return last, 0, oldest
    end
    local wanted = integer(number)
    if not wanted or wanted < 0 then
        return nil
    elseif kind == 'seq' then
        local effective = math.max(first, math.min(wanted, last))
        local is_there = effective == wanted
        if is_there and wanted <= tonumber(last_removed or '0') then
            is_there = redis.call('ZCOUNT', order_key, number, number) > 0
        end
        return effective, is_there and 0 or 1, oldest
    elseif kind == 'ms' then
        local earlier = redis.call('ZCOUNT', times_key, '-inf', '(' .. number)
        local score = redis.call('ZRANGE', order_key, earlier, earlier, 'WITHSCORES')[2]
        local is_clamped = not score and sequence > 0 and wanted <= tonumber(last_ms or '0') and 1 or 0
        if earlier == 0 and oldest > 1 then
            local oldest_ms = redis.call('ZRANGE', times_key, '0', '0', 'WITHSCORES')[2]
            is_clamped = oldest_ms and oldest_ms + 0 > wanted and 1 or 0
        end
        return score and score + 0 or last, is_clamped, oldest
    end
    return nil
end
