-- Options of the consumer in the first argument. If there is no such consumer, or it has another number of lanes, the
-- script returns the error here.
local options, unknown = options_of(keys.state, keys.options, ARGV[1])
local refused = unknown or lanes_error(options, keys.ready)
if refused then
    return refused
end
