-- Columns of an entry of the audit, between its number and its hash.
at,
actor,
action,
subject,
report_hash,
effect::text,
previous_hash,
