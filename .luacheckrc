-- Reads bundled scripts (python -m queuekeeper.lua --bundle DIR). The globals are what a Redis 7.0 script has, and how
-- Valkey says what it is; no more.
std = {
    read_globals = {
        KEYS = { other_fields = true },
        ARGV = { other_fields = true },
        redis = {
            fields = {
                call = {}, pcall = {}, error_reply = {}, status_reply = {}, sha1hex = {}, log = {},
                LOG_DEBUG = {}, LOG_VERBOSE = {}, LOG_NOTICE = {}, LOG_WARNING = {},
                setresp = {}, set_repl = {}, REPL_ALL = {}, REPL_NONE = {}, REPL_AOF = {}, REPL_SLAVE = {},
                REPL_REPLICA = {}, acl_check_cmd = {}, breakpoint = {}, debug = {},
                REDIS_VERSION = {}, REDIS_VERSION_NUM = {}, VALKEY_VERSION_NUM = {},
            },
        },
        cjson = { fields = { encode = {}, decode = {}, null = {} } },
        cmsgpack = { fields = { pack = {}, unpack = {} } },
        struct = { fields = { pack = {}, unpack = {}, size = {} } },
        bit = {
            fields = {
                tobit = {}, tohex = {}, bnot = {}, band = {}, bor = {}, bxor = {}, lshift = {}, rshift = {},
                arshift = {}, rol = {}, ror = {}, bswap = {},
            },
        },
        string = {
            fields = {
                byte = {}, char = {}, find = {}, format = {}, gmatch = {}, gsub = {}, len = {}, lower = {}, match = {},
                rep = {}, reverse = {}, sub = {}, upper = {},
            },
        },
        table = { fields = { concat = {}, insert = {}, maxn = {}, remove = {}, sort = {} } },
        math = {
            fields = {
                abs = {}, ceil = {}, floor = {}, fmod = {}, huge = {}, max = {}, min = {}, modf = {}, pow = {}, sqrt = {},
            },
        },
        assert = {}, error = {}, ipairs = {}, next = {}, pairs = {}, pcall = {}, select = {}, tonumber = {},
        tostring = {}, type = {}, unpack = {}, xpcall = {},
    },
}
max_line_length = 120
codes = true
