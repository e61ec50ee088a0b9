-- One reading of a store for its quality: what was asked, and when.
CREATE TABLE queuekeeper.profiles (
    profile_id text NOT NULL,
    store text NOT NULL,
    target text NOT NULL, -- address without user and password, and the prefix of keys: what may be compared
    mode text NOT NULL, -- fast: the cohorts of one turn; full: all that were chosen
    contents boolean NOT NULL, -- whether the messages' JSON was judged too
    cohort_count int NOT NULL,
    cohorts int[] NOT NULL, -- that were read
    sample_percent int NOT NULL, -- of their slots; a smaller sample is part of a larger one
    session_limit int NOT NULL, -- messages that a session may hold
    default_ttl_s bigint NOT NULL, -- life of a message without expiry
    max_payload_bytes bigint NOT NULL,
    as_of_ms bigint NOT NULL, -- the store's own clock when reading began
    queues bigint, -- null until the reading is complete
    messages bigint,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT profiles_pkey PRIMARY KEY (profile_id),
    CONSTRAINT profiles_store_check CHECK (store IN ('redis', 'postgres')),
    CONSTRAINT profiles_mode_check CHECK (mode IN ('fast', 'full')),
    CONSTRAINT profiles_sample_percent_check CHECK (sample_percent BETWEEN 1 AND 100)
);

-- What a profile found in one queue. Counts of faults are 0 in a healthy queue; null where a store has no such thing.
CREATE TABLE queuekeeper.queue_profiles (
    profile_id text NOT NULL,
    client_id text NOT NULL,
    client_hash text NOT NULL, -- keyed hash of the client id: the name that reports show
    cohort int NOT NULL,
    slot int NOT NULL,
    shard text NOT NULL,
    messages bigint NOT NULL, -- references of the set, or rows
    live bigint NOT NULL, -- of them, messages that are there and have not expired
    dead bigint NOT NULL, -- of them, references whose message is gone, or rows past their expiry
    over_limit bigint NOT NULL, -- live messages beyond the limit
    dead_crowding int NOT NULL, -- 1: dead references fill a queue that is nine tenths full or more
    lowest_serial double precision,
    highest_serial double precision,
    serial_gaps bigint NOT NULL, -- serials missing between lowest and highest
    tied_serials bigint NOT NULL, -- references whose serial another one has too
    bad_serials bigint NOT NULL, -- negative, not a whole number, or beyond 2^53
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
    bad_tag int NOT NULL, -- 1: the client id is empty or begins with } or %: its hash tag needs care
    odd_characters int NOT NULL, -- 1: the client id holds glob, control or HTML characters
    idle_keys bigint, -- keys without expiry of a session in which no message waits
    missing_session int, -- 1: messages wait for a client without a session
    earliest_expires_at_ms bigint,
    latest_expires_at_ms bigint,
    CONSTRAINT queue_profiles_pkey PRIMARY KEY (profile_id, client_id),
    CONSTRAINT queue_profiles_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);

-- Sums of a profile by cohort, for trends and boards.
CREATE TABLE queuekeeper.cohort_profiles (
    profile_id text NOT NULL,
    cohort int NOT NULL,
    shard text NOT NULL,
    queues bigint NOT NULL,
    messages bigint NOT NULL,
    live bigint NOT NULL,
    dead bigint NOT NULL,
    payload_bytes bigint NOT NULL,
    faulty_queues bigint NOT NULL, -- queues with any fault at all
    CONSTRAINT cohort_profiles_pkey PRIMARY KEY (profile_id, cohort),
    CONSTRAINT cohort_profiles_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);

-- When the messages of a profile expire: the timeline of memory that frees itself.
CREATE TABLE queuekeeper.expiry_hours (
    profile_id text NOT NULL,
    hour_ms bigint NOT NULL, -- start of the hour; 0: no expiry
    messages bigint NOT NULL,
    payload_bytes bigint NOT NULL,
    CONSTRAINT expiry_hours_pkey PRIMARY KEY (profile_id, hour_ms),
    CONSTRAINT expiry_hours_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);

-- One judgement of quality: which suites ran on which profiles, and what came of it.
CREATE TABLE queuekeeper.quality_runs (
    quality_run_id text NOT NULL,
    mode text NOT NULL,
    suites text[] NOT NULL,
    profile_ids text[] NOT NULL,
    verdict text NOT NULL DEFAULT 'running',
    numbers jsonb NOT NULL DEFAULT '{}', -- totals that the report and the trend show
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT quality_runs_pkey PRIMARY KEY (quality_run_id),
    CONSTRAINT quality_runs_verdict_check CHECK (verdict IN ('running', 'passed', 'warned', 'failed'))
);

-- What became of one expectation in a judgement of quality.
CREATE TABLE queuekeeper.quality_results (
    quality_run_id text NOT NULL,
    suite text NOT NULL,
    expectation int NOT NULL, -- its place in the suite, from 1
    check_id text NOT NULL, -- number of the check, such as Q1
    severity text NOT NULL,
    status text NOT NULL,
    description text NOT NULL,
    unexpected_count bigint NOT NULL DEFAULT 0, -- queues that break it
    observed text NOT NULL DEFAULT '',
    examples jsonb NOT NULL DEFAULT '[]', -- hashed client ids with the checked value: never a payload
    remedy text NOT NULL DEFAULT '', -- DAG that mends it
    remedy_conf jsonb NOT NULL DEFAULT '{}', -- its form, filled in
    CONSTRAINT quality_results_pkey PRIMARY KEY (quality_run_id, suite, expectation),
    CONSTRAINT quality_results_quality_run_id_fkey FOREIGN KEY (quality_run_id)
    REFERENCES queuekeeper.quality_runs (quality_run_id) ON DELETE CASCADE,
    CONSTRAINT quality_results_status_check CHECK (status IN ('passed', 'failed', 'known', 'broken'))
);

-- Failures that somebody answers for until a day: they are shown, and do not fail a run.
CREATE TABLE queuekeeper.known_issues (
    known_issue_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    check_id text NOT NULL,
    client_hash text, -- null: all queues
    owner text NOT NULL,
    reason text NOT NULL,
    ends_on date NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT known_issues_pkey PRIMARY KEY (known_issue_id)
);

-- A cleanup or a remedy: its plan, and what it did.
CREATE TABLE queuekeeper.maintenance_runs (
    maintenance_run_id text NOT NULL, -- hash of parameters and what was found
    kind text NOT NULL, -- expired_reference_cleanup, or the name of a remedy
    parameters jsonb NOT NULL,
    state text NOT NULL,
    plan jsonb NOT NULL, -- what would be done
    report jsonb, -- what was done
    approved_by text,
    approved_at timestamptz,
    throttle_operations_per_s int, -- may change while it runs; null: none
    paused boolean NOT NULL DEFAULT FALSE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT maintenance_runs_pkey PRIMARY KEY (maintenance_run_id),
    CONSTRAINT maintenance_runs_state_check CHECK (
        state IN ('planned', 'approved', 'running', 'done', 'stopped', 'failed')
    ),
    CONSTRAINT maintenance_runs_throttle_check CHECK (throttle_operations_per_s > 0)
);

-- How far a cleanup has come in each shard, so that it can pause, be killed and go on.
CREATE TABLE queuekeeper.maintenance_progress (
    maintenance_run_id text NOT NULL,
    shard text NOT NULL, -- host:port, with a range of hash slots where a server is shared out
    cursor text NOT NULL DEFAULT '0', -- where to go on: server's run id and SCAN's cursor, or what the remedy goes by
    scanned bigint NOT NULL DEFAULT 0,
    removed bigint NOT NULL DEFAULT 0,
    repaired bigint NOT NULL DEFAULT 0,
    freed_bytes bigint NOT NULL DEFAULT 0,
    counts jsonb NOT NULL DEFAULT '{}', -- the same in detail, by the names of the plan
    done boolean NOT NULL DEFAULT FALSE,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT maintenance_progress_pkey PRIMARY KEY (maintenance_run_id, shard),
    CONSTRAINT maintenance_progress_maintenance_run_id_fkey FOREIGN KEY (maintenance_run_id)
    REFERENCES queuekeeper.maintenance_runs (maintenance_run_id) ON DELETE CASCADE
);
