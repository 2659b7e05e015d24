"""Operations of administrators: aerobee.v1.AdminService and apache.rocketmq.v2.Admin, one module for each kind of
object."""
