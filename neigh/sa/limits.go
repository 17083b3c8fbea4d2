package sa

import "time"

// Bounds.
const (
	// maxOutstanding bounds the requests that wait for their answer. Linux allows its clients as many for a port, so that
	// they do not overrun the queue of the SA, which drops silently.
	maxOutstanding = 16
	// maxGroups bounds the groups of a port: 256 for each of eight interfaces. Each takes one of the 16,000 MLIDs of the
	// subnet. A broadcast group is never refused for it: each interface needs the one of its partition.
	maxGroups = 2048
	// DefaultMaxPaths bounds the paths in the cache, of less than 512 bytes each: the ports of a large subnet that one
	// host talks to.
	DefaultMaxPaths = 4096
	// maxPathQueries bounds the paths that are being asked for. In the worst case, all of them lost, 16 at a time, they
	// take some minutes; more would answer questions that no longer matter.
	maxPathQueries = 1024
	// maxEnded bounds the transactions that are remembered to tell late answers from foreign ones: those of some seconds.
	maxEnded = 128
)

// Times of a request. IBA 13.4.6.2 has a request time out after twice the SubnetTimeout and the RespTimeValue; see
// [requests.patience]. With OpenSM's values that is 2.4 s, in which one lost MAD would be felt, so the first tries are
// closer together: a repeated request costs the SA little, and its answer to an earlier try counts.
const (
	// slotTime is the longest that a request counts as outstanding: longer than any answer of an SA that is not overloaded.
	// While the SA answers, it is slotFactor times as long as the slowest of its recent answers took, if that is less, but
	// at least leastSlot.
	slotTime   = 500 * time.Millisecond
	leastSlot  = 100 * time.Millisecond
	slotFactor = 4
	// firstPause is the least time between two tries, and maxPause the longest; see [requests.pause].
	firstPause = 500 * time.Millisecond
	maxPause   = 16 * time.Second
	// quickTries are the tries whose pauses are not jittered, and may be shorter than the specification says: 0.5, 0.5 and
	// 1 s if the SA is silent.
	quickTries = 3
	// busyPause is the longest pause after BUSY. The first is firstPause, and each is twice as long as the last.
	busyPause = 2 * time.Second
	// aliveTime is how long after an answer the SA is thought to answer.
	aliveTime = 3 * time.Second
	// pathLife is how long a query for a path may take, with the time in the queue, before it fails.
	pathLife = 30 * time.Second
)

// Times of memberships.
const (
	// broadcastInterval and groupInterval are how often a membership is renewed, since the kernel's interfaces on the same
	// port may end it unseen. 1,000 hosts with ten groups each send 35 joins a second in total.
	broadcastInterval = time.Minute
	groupInterval     = 10 * time.Minute
	// serviceInterval is how often an SA is asked for the ClassPortInfo that has refused it.
	serviceInterval = time.Minute
	// rejoinSpread is the longest wait before a join after Reregister and the like: a restarted subnet manager asks all
	// hosts at once.
	rejoinSpread = 500 * time.Millisecond
	// kernelDelay is the wait after the kernel's interfaces want fewer groups: by then they have left the others.
	kernelDelay = 100 * time.Millisecond
	// The first rejoin of a flurry of events is sent at once, the second rushPause after it, and others each flurryPause. So
	// two events in a row lose nothing, and a flurry floods nothing. It is over when there was no event for calmTime, since a
	// port whose subnet manager has restarted receives no multicast until it rejoins. If flurries follow each other, no
	// more than mostSpent rejoins precede the pauses.
	rushPause   = time.Second
	flurryPause = 10 * time.Second
	calmTime    = 2 * time.Second
	mostSpent   = 6
	// refusedPause is the pause after a refused join; it doubles up to maxPause.
	refusedPause = time.Second
)

// Times of paths.
const (
	// pathAge is the age from which a path is asked for again when it is next wanted.
	pathAge = 10 * time.Minute
	// failedLife is how long a refused path is not asked for again.
	failedLife = time.Second
	// refreshPause is the least time between two refreshes of one path.
	refreshPause = time.Second
)
