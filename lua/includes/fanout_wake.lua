-- Wakes the workers of a consumer that wait: its stream has an entry until a claim has found nothing more.
local function wake(wakes_key)
    if redis.call('EXISTS', wakes_key) == 0 then
        redis.call('XADD', wakes_key, '*', 'w', '1')
    end
end
