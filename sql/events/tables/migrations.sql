-- What was applied to this schema. Version 0 is the state in which a release creates it.
CREATE TABLE pgmb.migrations (
    version int PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
