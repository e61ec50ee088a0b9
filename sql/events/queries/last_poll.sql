-- Tell when a poll last changed anything.
-- params: none
-- rows: one
-- index: none
SELECT st.polled_at
FROM pgmb.dispatch_state AS st
