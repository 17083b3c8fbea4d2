package control

// Kinds of fault that the daemon's shell injects, besides those of hca/faults.
const (
	FaultReplug      = "replug"       // undoes an unplug
	FaultReplugOther = "replug_other" // likewise, with another identity
	FaultClientSlow  = "client_slow"  // an interface delays its ready by 2 s
	FaultClientDead  = "client_dead"  // an interface never gets ready
)
