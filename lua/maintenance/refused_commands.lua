#!lua flags=no-writes
--[[
Purpose
    Find the commands that this user may not run on a key, before any work begins.
KEYS
    [1]  key             any key of the kind; it need not exist, and is not touched
ARGV
    [1+] commands        lower-case name; a subcommand follows after a bar, as in memory|usage
Returns
    {*refused}  commands that are refused
Errors
    INVALID  1 key and commands are expected
Cost
    O(M) for M commands; about 1 us per command.
]]
local FIRST_COMMAND = 1

if #KEYS ~= 1 or #ARGV < FIRST_COMMAND then
    return redis.error_reply('INVALID 1 key and commands are expected')
end

-- Least arguments of each command, with the key at its place.
local key = KEYS[1]
local refused = {}
local probes = {
    ['memory|usage'] = { 'memory', 'usage', key },
    hexists = { 'hexists', key, 'f' },
    hget = { 'hget', key, 'f' },
    hincrby = { 'hincrby', key, 'f', '1' },
    hmget = { 'hmget', key, 'f' },
    hset = { 'hset', key, 'f', 'v' },
    pexpire = { 'pexpire', key, '1' },
    pexpireat = { 'pexpireat', key, '1' },
    rename = { 'rename', key, key },
    set = { 'set', key, 'v' },
    zadd = { 'zadd', key, '1', 'm' },
    zmscore = { 'zmscore', key, 'm' },
    zrange = { 'zrange', key, '0', '0' },
    zrem = { 'zrem', key, 'm' },
    zscore = { 'zscore', key, 'm' },
}
for index = FIRST_COMMAND, #ARGV do
    if not redis.acl_check_cmd(unpack(probes[ARGV[index]] or { ARGV[index], key })) then
        refused[#refused + 1] = ARGV[index]
    end
end
return refused
