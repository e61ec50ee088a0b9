-- Take in differences.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY queuekeeper.differences (
    plan_id, cohort, client_id, serial_number, kind, expected, found
) FROM STDIN (FORMAT "binary")
