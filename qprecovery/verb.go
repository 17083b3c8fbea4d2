package qprecovery

// Verb is a verb of the hca contract. Its name is the one in libibverbs without the
// prefix.
type Verb uint8

// Verbs.
const (
	VerbOpenDevice Verb = iota
	VerbQueryPort
	VerbAllocPD
	VerbRegMR
	VerbCreateCQ
	VerbCreateQP
	VerbCreateAH
	VerbModifyQP
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
	"modify_qp", "query_qp", "post_send", "post_recv", "poll_cq", "req_notify_cq", "get_async_event",
	"attach_mcast", "detach_mcast", "destroy_ah", "destroy_qp", "destroy_cq", "dereg_mr", "dealloc_pd", "close_device",
}

func (v Verb) String() string {
	if v >= NumVerb {
		return "unknown"
	}
	return verbNames[v]
}

// verbNamed returns the verb with the name in [hca.VerbError.Verb].
func verbNamed(name string) (Verb, bool) {
	for v, n := range verbNames {
		if n == name {
			return Verb(v), true
		}
	}
	return 0, false
}
