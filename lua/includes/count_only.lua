-- Put before a script that only counts what it would do: reads go to the server, and a write is answered as the server
-- would answer it, but not sent. The script does not see its own writes, so a script that decides by what it has
-- written cannot be run like this.
local redis = (function(server)
    local function ask(...)
        return server.call(...)
    end

    -- Counts each name once, since a write that names a member twice finds it once.
    local function each_once(first, ...)
        local names, seen = {}, {}
        for place = first, select('#', ...) do
            local name = tostring((select(place, ...)))
            if not seen[name] then
                seen[name] = true
                names[#names + 1] = name
            end
        end
        return names
    end

    local function how_many(values)
        local count = 0
        for place = 1, #values do
            count = count + (values[place] and 1 or 0)
        end
        return count
    end

    local function existing(...)
        local count = 0
        for _, key in ipairs(each_once(1, ...)) do
            count = count + ask('EXISTS', key)
        end
        return count
    end

    local function done()
        return { ok = 'OK' }
    end

    local function ending(key)
        return ask('EXISTS', key)
    end

    local function pushed(key, ...)
        return ask('LLEN', key) + select('#', ...)
    end

    local function popped(first, last)
        return function(key, count)
            local values = ask('LRANGE', key, first(count or 1), last(count or 1))
            return count and (values[1] and values) or values[1] or false
        end
    end

    local function new_members(key, ...)
        local nx, first = false, 1
        while type((select(first, ...))) == 'string' and string.find((select(first, ...)), '^[NXGLTCH]+$') do
            nx = nx or select(first, ...) == 'NX'
            if select(first, ...) == 'XX' then
                return 0
            end
            first = first + 1
        end
        local names = {}
        for place = first + 1, select('#', ...), 2 do
            names[#names + 1] = (select(place, ...))
        end
        names = each_once(1, unpack(names))
        return #names - how_many(ask('ZMSCORE', key, unpack(names)))
    end

    local function new_fields(key, ...)
        local names = {}
        for place = 1, select('#', ...), 2 do
            names[#names + 1] = (select(place, ...))
        end
        names = each_once(1, unpack(names))
        return #names - how_many(ask('HMGET', key, unpack(names)))
    end

    local writes = {
        UNLINK = existing,
        DEL = existing,
        SET = done,
        RENAME = done,
        LSET = done,
        LTRIM = done,
        PEXPIREAT = ending,
        PEXPIRE = ending,
        EXPIRE = ending,
        PERSIST = function(key)
            return ask('PEXPIRETIME', key) >= 0 and 1 or 0
        end,
        ZADD = new_members,
        ZINCRBY = function(key, number, member)
            return string.format('%.17g', (ask('ZSCORE', key, member) or 0) + number)
        end,
        ZREM = function(key, ...)
            return how_many(ask('ZMSCORE', key, unpack(each_once(1, ...))))
        end,
        ZREMRANGEBYSCORE = function(key, low, high)
            return ask('ZCOUNT', key, low, high)
        end,
        HSET = new_fields,
        HSETNX = new_fields,
        HDEL = function(key, ...)
            return how_many(ask('HMGET', key, unpack(each_once(1, ...))))
        end,
        HINCRBY = function(key, field, number)
            return tonumber(ask('HGET', key, field) or 0) + tonumber(number)
        end,
        XADD = done,
        XTRIM = function()
            return 0
        end,
        LPUSH = pushed,
        RPUSH = pushed,
        LPOP = popped(function()
            return 0
        end, function(count)
            return count - 1
        end),
        LREM = function(key, count, value)
            local found = #ask('LPOS', key, value, 'COUNT', 0)
            count = math.abs(tonumber(count))
            return count > 0 and math.min(count, found) or found
        end,
    }
    local reads = {}
    for name in string.gmatch(
        'EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN HSTRLEN INFO LINDEX LLEN LPOS LRANGE MEMORY MGET '
            .. 'PEXPIRETIME STRLEN TIME TYPE XINFO XRANGE ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE '
            .. 'ZREVRANGEBYSCORE ZSCORE',
        '%u+'
    ) do
        reads[name] = true
    end
    local function call(name, ...)
        if reads[name] then
            return ask(name, ...)
        end
        local write = writes[name]
        if not write then
            error('what ' .. name .. ' would do cannot be said without doing it')
        end
        return write(...)
    end
    return {
        call = call,
        error_reply = server.error_reply,
        status_reply = server.status_reply,
        sha1hex = server.sha1hex,
    }
end)(redis)
