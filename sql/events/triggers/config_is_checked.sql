-- Judge settings when they are changed.
CREATE TRIGGER config_is_checked BEFORE INSERT OR UPDATE OR DELETE ON pgmb.config
FOR EACH ROW EXECUTE FUNCTION pgmb.check_config();
