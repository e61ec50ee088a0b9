-- Settings; get_config_value reads them, check_config judges them.
CREATE TABLE pgmb.config (
    id pgmb.config_type PRIMARY KEY,
    value text
);
