package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"ipoibd/qprecovery/reset"
)

// owner is the goroutine that owns all state, the member's and the host's.
type owner struct {
	*Coordinator
	ctx    context.Context // ends at Close
	work   sync.WaitGroup  // all other goroutines
	news   chan news
	now    time.Time // of the turn under way
	last   reset.Conn
	queued []Event // not yet taken by the user

	meeting *meeting // nil: nobody shares the device
	member  member
	host    *host // nil: another process hosts, or nobody
	refused uint64
}

func newOwner(ctx context.Context, c *Coordinator, m *meeting) *owner {
	now := time.Now()
	client := reset.NewClient(now, reset.ClientConfig{
		ID: reset.ClientID(max(random(), 1)), Name: c.conf.Name, Grace: c.conf.Grace, Limit: c.conf.Limit,
	})
	return &owner{
		Coordinator: c, ctx: ctx, now: now, meeting: m,
		news:   make(chan news),
		member: member{client: client, inbox: []reset.ClientEvent{reset.ClientTick{}}},
	}
}

func random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint64(b[:])
}

func (o *owner) run() {
	defer close(o.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for o.ctx.Err() == nil {
		o.turn()
		timer.Reset(o.untilDeadline())
		o.await(timer.C)
	}
	o.end()
}

// await waits for something to do.
func (o *owner) await(timer <-chan time.Time) {
	out, next := o.offer()
	select {
	case n := <-o.news:
		n.tell(o)
	case out <- next:
		o.queued = o.queued[1:]
	case <-o.kick:
		o.obey()
	case <-timer:
		o.tick()
	case <-o.ctx.Done():
	}
}

// offer returns what the user gets next, on a nil channel where there is nothing.
func (o *owner) offer() (chan<- Event, Event) {
	if len(o.queued) == 0 {
		return nil, nil
	}
	return o.events, o.queued[0]
}

// obey takes up what the user ordered.
func (o *owner) obey() {
	if o.requested.Swap(false) {
		o.member.take(reset.WantReset{})
	}
	o.member.take(reset.Released{Reset: reset.ID(o.released.Load())})
}

func (o *owner) tick() {
	o.member.take(reset.ClientTick{})
	if o.host != nil {
		o.host.take(reset.Tick{})
	}
}

// turn steps both machines until neither has anything to do, at one moment.
func (o *owner) turn() {
	o.now = time.Now()
	for o.stepMember() || o.stepHost() {
	}
	o.publish()
}

// noDeadline is far enough away to be none.
const noDeadline = time.Hour

func (o *owner) untilDeadline() time.Duration {
	left := noDeadline
	if at, ok := o.member.client.NextDeadline(); ok {
		left = min(left, at.Sub(o.now))
	}
	if o.host == nil {
		return left
	}
	if at, ok := o.host.server.NextDeadline(); ok {
		left = min(left, at.Sub(o.now))
	}
	return left
}

// spawn runs f until it ends, which closing what it waits for brings about.
func (o *owner) spawn(f func()) { o.work.Go(f) }

// report hands news to the owner, in any other goroutine; false: it has ended.
func (o *owner) report(n news) bool {
	select {
	case o.news <- n:
		return true
	case <-o.ctx.Done():
		return false
	}
}

func (o *owner) nextConn() reset.Conn {
	o.last++
	return o.last
}

// end says goodbye, then lets everything go: first what others wait for.
func (o *owner) end() {
	o.member.take(reset.Stop{})
	o.turn()
	if o.host != nil {
		o.host.close()
	}
	o.work.Wait()
	o.meeting.close()
	o.host = nil
	close(o.events)
}

func (o *owner) publish() {
	s := o.member.status()
	s.Refused = o.refused
	if o.host != nil {
		o.host.fill(&s)
	}
	o.status.Store(&s)
}
