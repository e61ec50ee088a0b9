-- Numbers of one queue in a profile. Counts of faults are 0 in a healthy queue, and null if the store has no such
-- fault.
-- needs: profiles
CREATE TABLE queuekeeper.queue_profiles (
    profile_id text NOT NULL,
    client_id text NOT NULL,
    client_hash text NOT NULL, -- keyed hash of the client id: the name that reports show
    cohort int NOT NULL,
    slot int NOT NULL,
    shard text NOT NULL,
    messages bigint NOT NULL, -- references of the set, or rows
    live bigint NOT NULL, -- of them, messages that are there and have not expired
    dead bigint NOT NULL, -- of them, references whose message is gone, or rows and packed messages past their expiry
    over_limit bigint NOT NULL, -- live messages beyond the limit
    dead_crowding int NOT NULL, -- 1: dead references fill a queue that is nine tenths full or more
    lowest_serial double precision,
    highest_serial double precision,
    serial_gaps bigint NOT NULL, -- serials missing between lowest and highest
    tied_serials bigint NOT NULL, -- references whose serial another one has too
    bad_serials bigint NOT NULL, -- negative, not a whole number, beyond 2^53; packed: not between those of the state
    step_errors bigint NOT NULL, -- neighbours whose packet ids step otherwise than serials; Redis may pass over ids
    bad_packet_ids bigint NOT NULL, -- null or outside 1 to 65,535
    duplicate_packet_ids bigint, -- rows whose packet id another one has too
    duplicate_messages bigint, -- same topic, time and payload as another; null unless contents were read
    foreign_references bigint, -- members that do not name a payload key of this client
    orphans bigint, -- payloads that no reference names
    last_packet_id bigint, -- null: none, or unreadable
    counter_missing int NOT NULL, -- 1: messages wait and no packet id is recorded as given out last
    counter_invalid int NOT NULL, -- 1: the record is no packet id
    counter_behind int NOT NULL, -- 1: the newest message has a later packet id, or TBMQ would give out one in use
    without_ttl bigint, -- payloads that would never expire
    ttl_too_long bigint, -- payloads that outlive their own expiry, or the default life; null unless contents were read
    payload_bytes bigint NOT NULL,
    largest_bytes bigint NOT NULL,
    oversized bigint NOT NULL,
    unreadable bigint, -- records that are no message; null unless contents were read
    mismatched bigint, -- records of another client or packet id than their key says; null unless contents were read
    bad_qos bigint, -- quality of service outside 0 to 2; this and the next two: null for unread contents
    qos_0 bigint,
    bad_packet_types bigint, -- neither PUBLISH nor PUBREL, or PUBREL below quality of service 2
    wrong_type_keys bigint, -- keys that hold another Redis type than they should
    bad_tag int NOT NULL, -- 1: its keys cannot be read together, or hold another client's messages
    odd_characters int NOT NULL, -- 1: the client id holds glob, control or HTML characters
    idle_keys bigint, -- keys without expiry of a session in which no message waits
    missing_session int, -- 1: messages wait for a client without a session
    earliest_expires_at_ms bigint,
    latest_expires_at_ms bigint,
    next_in_use int, -- 1: a live message has the packet id after last_packet_id; PostgreSQL's only
    layout text NOT NULL DEFAULT 'tbmq', -- of the session's keys: tbmq or packed; of TBMQ's tables, too, tbmq
    state_faults bigint, -- what a packed session's state says that does not hold for its messages; else null
    -- Packed: 1 if TBMQ's layout has a session of the client, too, and both take messages; 2 if messages wait in both.
    in_both_layouts int,
    CONSTRAINT queue_profiles_pkey PRIMARY KEY (profile_id, client_id, layout),
    CONSTRAINT queue_profiles_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);
