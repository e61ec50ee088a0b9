-- Take from the role of conditions what PGMB had given it; the comment tells people what the schema is.
DO $$
BEGIN
    REVOKE ALL ON SCHEMA pgmb_original FROM pgmb_reader;
    REVOKE ALL ON ALL TABLES IN SCHEMA pgmb_original FROM pgmb_reader;
    COMMENT ON SCHEMA pgmb_original IS 'PGMB as it was before Queuekeeper took it over; nothing uses it any more';
END
$$
