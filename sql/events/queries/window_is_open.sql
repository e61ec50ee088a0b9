-- Tell whether the last poll has left a part of its window to the next.
-- params: none
-- rows: one
-- index: none
SELECT st.open_window IS NOT NULL AS is_open
FROM pgmb.dispatch_state AS st
