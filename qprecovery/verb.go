package qprecovery

// Verb is a verb of the hca contract. Its name is the one in libibverbs without the
// prefix.
type Verb uint8

// Verbs. There is one modify_qp for each target state.
const (
	VerbOpenDevice Verb = iota
	VerbQueryPort
	VerbAllocPD
	VerbRegMR
	VerbCreateCQ
	VerbCreateQP
	VerbCreateAH
	VerbModifyReset
	VerbModifyInit
	VerbModifyRTR
	VerbModifyRTS
	VerbModifySQD
	VerbModifySQE
	VerbModifyErr
	VerbQueryQP
	VerbPostSend
	VerbPostRecv
	VerbPollCQ
	VerbReqNotifyCQ
	VerbGetAsyncEvent
	VerbAttachMcast
	VerbDetachMcast
	VerbDestroyAH
	VerbDestroyQP
	VerbDestroyCQ
	VerbDeregMR
	VerbDeallocPD
	VerbCloseDevice
	// NumVerb is the number of verbs.
	NumVerb
)

var verbNames = [NumVerb]string{
	"open_device", "query_port", "alloc_pd", "reg_mr", "create_cq", "create_qp", "create_ah",
	"modify_qp_reset", "modify_qp_init", "modify_qp_rtr", "modify_qp_rts", "modify_qp_sqd", "modify_qp_sqe",
	"modify_qp_err", "query_qp", "post_send", "post_recv", "poll_cq", "req_notify_cq", "get_async_event",
	"attach_mcast", "detach_mcast", "destroy_ah", "destroy_qp", "destroy_cq", "dereg_mr", "dealloc_pd", "close_device",
}

func (v Verb) String() string {
	if v >= NumVerb {
		return "unknown"
	}
	return verbNames[v]
}

// verbNamed returns the verb with the name in [hca.VerbError.Verb]. The name
// "modify_qp" does not include the target, so verbNamed returns
// [VerbModifyRTS]; all targets have the same classes.
func verbNamed(name string) (Verb, bool) {
	if name == "modify_qp" {
		return VerbModifyRTS, true
	}
	for v, n := range verbNames {
		if n == name {
			return Verb(v), true
		}
	}
	return 0, false
}
