--- @include "includes/integers"
--- @include "includes/is_acked"
--- @include "includes/is_policy"
-- Returns the retention of a queue: its own rules, which configure has set, or else the given ones; or nothing and the
-- error, when they are not valid. Old rows that wait for an acknowledgement are looked at again after an hour.
local LOOK_AGAIN_MS = 3600000

local function retention_of(own, override, policy, retention_text, tombstone_text, now)
    local retention_ms, tombstone_ms = integer(retention_text), integer(tombstone_text)
    if not is_policy(policy, retention_ms, tombstone_ms) or (override ~= '0' and override ~= '1') or not now then
        return nil, 'the retention is none'
    end
    if own[1] and override == '0' then
        policy, retention_ms, tombstone_ms = own[1], integer(own[2] or ''), integer(own[3] or '')
        if not is_policy(policy, retention_ms, tombstone_ms) then
            return nil, 'the retention of the queue itself is none: configure it anew'
        end
    end
    return {
        policy = policy,
        retention_ms = retention_ms,
        tombstone_ms = tombstone_ms,
        old_ms = now - retention_ms,
        old_tombstone_ms = now - tombstone_ms,
    }
end

-- If a tombstone were removed before its acknowledgement, the consumer would never learn of it: it stays until
-- retention ends, and for ever with acked_only and compact.
local function is_due(rules, ms, is_tombstone, acknowledged)
    if ms < rules.old_ms and rules.policy ~= 'compact' then
        return acknowledged or rules.policy ~= 'acked_only'
    end
    return is_tombstone and acknowledged and ms < rules.old_tombstone_ms
end

local function rank_of(times_key, ms)
    return redis.call('ZCOUNT', times_key, '-inf', string.format('(%.0f', ms))
end

local function first_from(times_key, ms)
    local score = redis.call('ZRANGE', times_key, string.format('%.0f', ms), '+inf', 'BYSCORE', 'LIMIT', '0', '1',
        'WITHSCORES')[2]
    return score and score + 0
end

-- The script says in keys.has_tombstones whether there are tombstones, since while a cluster moves a slot, a command on
-- a key that the script has emptied fails.

-- Returns at most so many old enough rows after a sequence, the oldest first, as keys and scores alternately. Instants
-- rise with sequences: old rows come first, and after them only tombstones can be due.
local function old_rows(rules, keys, after, limit)
    local after_text, rows = string.format('(%.0f', after), {}
    if rules.policy ~= 'compact' then
        local old = rank_of(keys.times, rules.old_ms)
        local end_score = old > 0 and redis.call('ZRANGE', keys.order, old - 1, old - 1, 'WITHSCORES')[2]
        if end_score and end_score + 0 > after then
            rows = redis.call(
                'ZRANGE', keys.order, after_text, end_score, 'BYSCORE', 'LIMIT', '0', limit, 'WITHSCORES'
            )
            after_text = '(' .. end_score
        end
    end
    local old = rank_of(keys.times, rules.old_tombstone_ms)
    local end_score = old > 0 and redis.call('ZRANGE', keys.order, old - 1, old - 1, 'WITHSCORES')[2]
    local room = limit - #rows / 2
    if end_score and room > 0 and keys.has_tombstones then
        local tombstones = redis.call(
            'ZRANGE', keys.tombstones, after_text, end_score, 'BYSCORE', 'LIMIT', '0', room, 'WITHSCORES'
        )
        for place = 1, #tombstones do
            rows[#rows + 1] = tombstones[place]
        end
    end
    return rows
end

-- Returns the instant of the next look at the queue, -1 when nothing can ever be due. Rows that are old already wait
-- for acknowledgements, or have not been collected yet.
local function next_due_ms(rules, keys, now)
    local due = nil
    local function note(ms)
        if ms and (not due or ms < due) then
            due = ms
        end
    end
    if rules.policy ~= 'compact' then
        local ms = first_from(keys.times, rules.old_ms)
        note(ms and ms + rules.retention_ms + 1)
    end
    if keys.has_tombstones then
        local old = rank_of(keys.times, rules.old_tombstone_ms)
        local from = redis.call('ZRANGE', keys.order, old, old, 'WITHSCORES')[2]
        local key = from and redis.call(
            'ZRANGE', keys.tombstones, from, '+inf', 'BYSCORE', 'LIMIT', '0', '1'
        )[1]
        local ms = key and redis.call('ZSCORE', keys.times, key)
        note(ms and ms + rules.tombstone_ms + 1)
    end
    if #old_rows(rules, keys, 0, 1) > 0 then
        note(now + LOOK_AGAIN_MS)
    end
    return due or -1
end
