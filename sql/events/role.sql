-- The role as which conditions are evaluated: it reads subscriptions, is handed events, and may nothing else.
-- Roles belong to the whole server, so another database may have made it already.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgmb_reader') THEN
        BEGIN
            CREATE ROLE pgmb_reader NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL; -- another installation was a moment earlier
        END;
    END IF;
    -- From PostgreSQL 16 on, who makes a role may grant it, and is not one who may act as it.
    IF current_setting('server_version_num')::int < 160000 THEN
        IF NOT pg_has_role(current_user, 'pgmb_reader', 'MEMBER') THEN
            GRANT pgmb_reader TO CURRENT_USER;
        END IF;
    ELSIF NOT (pg_has_role(current_user, 'pgmb_reader', 'SET') AND pg_has_role(current_user, 'pgmb_reader', 'USAGE')) THEN
        EXECUTE 'GRANT pgmb_reader TO CURRENT_USER WITH INHERIT TRUE, SET TRUE';
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'user % may not give functions to role pgmb_reader', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = format(
                'As a superuser: CREATE ROLE pgmb_reader NOLOGIN NOINHERIT (if it is missing); '
                'GRANT pgmb_reader TO %I.', current_user
            );
END
$$;
