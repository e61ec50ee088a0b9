-- Delete the policy of a table.
-- params: table
-- rows: none
-- index: partition_policies_pkey
DELETE FROM queuekeeper.partition_policies
WHERE table_name = %(table)s
