local function is_policy(policy, retention_ms, tombstone_ms)
    return (policy == 'delete' or policy == 'acked_only' or policy == 'compact')
        and retention_ms and retention_ms >= 0 and tombstone_ms and tombstone_ms >= 0
end
