-- Rows of the suite of Redis servers: settings and state of each master when the run began.
-- params: quality_run_id
-- rows: (address, maxmemory_policy, maxmemory_bytes, memory_share, aof_enabled, aof_written, appendfsync,
-- evicted_keys, replicas); memory_share of its limit, or of the machine's memory where it has none
-- index: quality_runs_pkey
SELECT
    server.address,
    server.maxmemory_policy,
    server.maxmemory_bytes,
    cast(
        server.used_memory_bytes
        / nullif(coalesce(nullif(server.maxmemory_bytes, 0), server.total_system_memory_bytes), 0)
        AS double precision
    ) AS memory_share,
    cast(server.aof_enabled AS int) AS aof_enabled,
    cast(server.aof_written AS int) AS aof_written,
    server.appendfsync,
    server.evicted_keys,
    server.replicas
FROM queuekeeper.quality_runs AS runs
CROSS JOIN
    jsonb_to_recordset(runs.numbers -> 'servers') AS server (
        address text,
        maxmemory_policy text,
        maxmemory_bytes numeric,
        used_memory_bytes numeric,
        total_system_memory_bytes numeric,
        aof_enabled boolean,
        aof_written boolean,
        appendfsync text,
        evicted_keys bigint,
        replicas bigint
    )
WHERE runs.quality_run_id = %(quality_run_id)s
