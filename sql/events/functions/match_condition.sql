-- Return for which of its subscriptions a condition holds on which events, or why it failed.
-- Belongs to role pgmb_reader, so that a condition can do no more than that role, and is stable, so that it executes
-- one query and nothing else. It evaluates only what condition_refusal has let into a subscription: whoever may call it
-- need not be trusted. The condition is joined to the statement as it is, never passed through format(), since it may
-- hold any character.
-- Its failure is what data and the condition itself bring about. What the server lacks, or a right that somebody has
-- taken away, is no fault of a subscription: such errors are the caller's.
-- owner: pgmb_reader
CREATE FUNCTION pgmb.match_condition(
    condition text,
    key uuid,
    subscription_ids varchar(24)[], -- null: all that share the condition
    batch pgmb.events[],
    batch_positions int[],
    OUT matches pgmb.condition_match[],
    OUT failure text
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_catalog, pg_temp
SET timezone TO 'UTC'
SET standard_conforming_strings TO on -- as condition_refusal reads strings
SET jit TO off
-- A poll switches these off for its own statements; here they serve the joins of many subscriptions.
SET enable_bitmapscan TO on
SET enable_hashjoin TO on
SET enable_mergejoin TO on
SET enable_seqscan TO on
-- The table of subscriptions is small and in memory, and what compares JSON takes longer than what compares numbers:
-- as the defaults have it, every event would be held against each of some hundred subscriptions instead of looked up.
SET random_page_cost TO 1.1
SET cpu_operator_cost TO 0.01
AS $$
BEGIN
    -- What is stored was judged then: judging it with every poll would take longer than evaluating it.
    IF condition <> 'TRUE' AND NOT EXISTS (
        SELECT FROM pgmb.subscriptions AS s
        WHERE
            s.condition_key = md5(condition)::uuid AND s.quarantined_at IS NULL
            AND s.conditions_sql = condition
    ) THEN
        failure := 'no subscription that is not in quarantine has this condition: only what was judged is evaluated';
        RETURN;
    END IF;
    EXECUTE
        'SELECT array_agg(ROW(m.group_id, m.id, m.positions)::pgmb.condition_match) FROM ('
        'SELECT s.group_id, s.id, array_agg(e.dispatch_position ORDER BY e.dispatch_position) AS positions '
        'FROM unnest($3, $4) AS e '
        '(id, topic, payload, metadata, subscription_id, transaction_id, dispatch_position) '
        'INNER JOIN pgmb.subscriptions AS s ON s.condition_key = $1 AND s.quarantined_at IS NULL '
        || CASE WHEN subscription_ids IS NULL THEN '' ELSE 'AND s.id = ANY($2) ' END
        || E'WHERE (\n' || condition || E'\n) GROUP BY s.group_id, s.id) AS m'
        INTO matches
        USING key, subscription_ids, batch, batch_positions;
EXCEPTION
    WHEN OTHERS THEN
        -- Cardinality, data, features, what only reads, syntax and access rules, limits of the program.
        IF left(SQLSTATE, 2) NOT IN ('21', '22', '0A', '25', '42', '54') OR SQLSTATE = '42501' THEN
            RAISE;
        END IF;
        GET STACKED DIAGNOSTICS failure = MESSAGE_TEXT;
        failure := coalesce(nullif(failure, ''), SQLSTATE);
END
$$;
