-- Tell whether any session may be another store's; whoever arms a cohort waits until the transaction ends.
-- params: none
-- rows: one: (whether)
-- index: none
SELECT queuekeeper.sessions_move() AS sessions_move
