-- Judge settings when they are changed.
CREATE TRIGGER config_is_checked BEFORE INSERT OR UPDATE ON pgmb.config
FOR EACH ROW EXECUTE FUNCTION pgmb.check_config();
