-- Options of the consumer that the first argument names. Where there is no such consumer, or it has other lanes, the
-- call ends here.
local options, unknown = options_of(keys.state, keys.options, ARGV[1])
local refused = unknown or lanes_error(options, keys.ready)
if refused then
    return refused
end
