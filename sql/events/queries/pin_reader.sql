-- Have a server notice soon that its client's machine is gone: until then nobody else gets the group.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT
    set_config('tcp_keepalives_idle', '15', FALSE) AS idle,
    set_config('tcp_keepalives_interval', '5', FALSE) AS pause,
    set_config('tcp_keepalives_count', '3', FALSE) AS probes
