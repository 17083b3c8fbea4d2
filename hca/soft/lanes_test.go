package soft

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/transport"
)

// crowd is a device with several lanes and a QP with several queues. Each queue has its own owner.
type crowd struct {
	testing.TB
	dev    *Device
	pd     hca.PD
	qp     hca.QP
	queues []hca.Queue
	cqs    []hca.CQPair
	mr     hca.MR
	owners sync.WaitGroup
	stop   chan struct{}

	mu   sync.Mutex
	next map[byte]uint32 // number that the next message of a flow must reach, by flow
	at   map[byte]int    // queue that received the messages of a flow
	got  uint64
}

const crowdDepth = 32

func newCrowd(t testing.TB, f *memfabric.Fabric, name string, lanes, queues int, addr netip.Addr) *crowd {
	t.Helper()
	ports := f.AttachLanes(lanes, name, 1500, addr)
	cfg := Config{Name: name, Transport: ports[0]}
	for _, p := range ports[1:] {
		cfg.More = append(cfg.More, transport.Transport(p))
	}
	c := &crowd{TB: t, dev: have(Open(cfg))(t), stop: make(chan struct{}), next: map[byte]uint32{}, at: map[byte]int{}}
	c.pd = have(c.dev.AllocPD())(t)
	c.mr = have(c.pd.AllocMR((queues+1)*crowdDepth*64, hca.AccessLocalWrite))(t)
	for range queues {
		c.cqs = append(c.cqs, hca.CQPair{
			Send: have(c.dev.CreateCQ(hca.CQSpec{Entries: 4 * crowdDepth}))(t),
			Recv: have(c.dev.CreateCQ(hca.CQSpec{Entries: 4 * crowdDepth}))(t),
		})
	}
	var err error
	spec := hca.QPSpec{Queues: queues, SendWRs: crowdDepth, RecvWRs: crowdDepth, SendSGEs: 1, RecvSGEs: 1, SignalAll: true}
	if c.qp, c.queues, err = hca.CreateQueues(c.pd, spec, c.cqs); err != nil {
		t.Fatal(err)
	}
	for i := range queues {
		c.owners.Go(func() { c.own(i) })
	}
	return c
}

// up brings the QP up, with receives.
func (c *crowd) up() {
	c.Helper()
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		a := hca.QPAttr{State: s + 1, Port: 1, QKey: rigQKey}
		if err := c.qp.Modify(a, hca.AttrState|hca.UDTransition(s, s+1).Required); err != nil {
			c.Fatal(err)
		}
		if s == hca.QPReset {
			for i := range c.queues {
				for k := range crowdDepth {
					c.postRecv(i, uint64(k))
				}
			}
		}
	}
}

func (c *crowd) postRecv(queue int, slot uint64) {
	wr := hca.RecvWR{ID: slot, SGList: []hca.SGE{c.mr.SGE((queue*crowdDepth+int(slot))*64, 64)}}
	if _, err := c.queues[queue].PostRecv([]hca.RecvWR{wr}); err != nil {
		c.Errorf("post receive to queue %d: %v", queue, err)
	}
}

// own takes the completions of a receive queue, and posts its receives again.
func (c *crowd) own(queue int) {
	cq, wc := c.cqs[queue].Recv, make([]hca.WC, 8)
	for {
		n, err := cq.Poll(wc)
		if n == 0 && err == nil {
			if err = cq.Arm(); err == nil {
				if n, err = cq.Poll(wc); n == 0 && err == nil {
					select {
					case <-c.stop:
						return
					default:
						err = cq.Wait(time.Time{})
					}
				}
			}
		}
		if err != nil {
			c.Errorf("owner of queue %d: %v", queue, err)
			return
		}
		for _, w := range wc[:n] {
			if w.Status == hca.WCSuccess {
				c.received(queue, c.mr.Bytes()[(queue*crowdDepth+int(w.ID))*64+hca.GRHLen:])
				c.postRecv(queue, w.ID)
			}
		}
	}
}

// received notes a message: it must be later than the last one of its flow, and arrive at the
// same queue.
func (c *crowd) received(queue int, msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	flow, number := msg[0], binary.BigEndian.Uint32(msg[1:])
	if number < c.next[flow] {
		c.Errorf("flow %d: message %d after %d", flow, number, c.next[flow]-1)
	}
	if last, seen := c.at[flow]; seen && last != queue {
		c.Errorf("flow %d: message %d at queue %d, those before at queue %d", flow, number, queue, last)
	}
	c.next[flow], c.at[flow] = number+1, queue
	c.got++
}

// send sends a numbered message of a flow by the queue of the flow.
func (c *crowd) send(ah hca.AH, to hca.QPN, flow byte, number uint32) {
	c.Helper()
	i := int(flow) % len(c.queues)
	slot := len(c.queues)*crowdDepth + i
	buf := c.mr.Bytes()[slot*64:][:5]
	buf[0] = flow
	binary.BigEndian.PutUint32(buf[1:], number)
	wr := hca.SendWR{SGList: []hca.SGE{c.mr.SGE(slot*64, 5)}, UD: hca.UDDest{AH: ah, QPN: to, QKey: rigQKey}}
	if _, err := c.queues[i].PostSend([]hca.SendWR{wr}); err != nil {
		c.Fatal(err)
	}
	if n, err := c.cqs[i].Send.Poll(make([]hca.WC, 1)); n != 1 || err != nil {
		c.Fatalf("%d completions of a send: %v", n, err)
	}
}

func (c *crowd) to(s hca.QPState) {
	c.Helper()
	if err := c.qp.Modify(hca.QPAttr{State: s}, hca.AttrState); err != nil {
		c.Fatal(err)
	}
}

// finish ends the owners and closes everything.
func (c *crowd) finish() {
	c.Helper()
	close(c.stop)
	for _, p := range c.cqs {
		p.Recv.Wake()
	}
	c.owners.Wait()
	closers := []interface{ Close() error }{c.qp}
	for _, p := range c.cqs {
		closers = append(closers, p.Send, p.Recv)
	}
	for _, x := range append(closers, c.mr, c.pd, c.dev) {
		if err := x.Close(); err != nil {
			c.Error(err)
		}
	}
}

func (c *crowd) counted(name string) uint64 {
	c.Helper()
	for _, x := range c.dev.Counters() {
		if x.Name == name {
			return x.Value
		}
	}
	c.Fatalf("no counter %q", name)
	return 0
}

// The messages of each flow arrive in order and at one queue, and each message is delivered once
// or counted as dropped, whatever the numbers of lanes and queues are, while the receiving QP goes
// through ERR and RESET.
func TestLanesKeepTheOrderOfFlows(t *testing.T) {
	for _, c := range []struct{ lanesA, queuesA, lanesB, queuesB int }{
		{1, 1, 4, 4}, {2, 2, 2, 2}, {4, 4, 1, 1}, {4, 4, 2, 2}, {4, 4, 4, 4}, {4, 8, 4, 2}, {2, 8, 8, 8}, {1, 4, 1, 4},
	} {
		t.Run(fmt.Sprintf("%d_%d_to_%d_%d", c.lanesA, c.queuesA, c.lanesB, c.queuesB), func(t *testing.T) {
			for seed := range uint64(5) {
				synctest.Test(t, func(t *testing.T) {
					f := memfabric.New(seed)
					a := newCrowd(t, f, "a", c.lanesA, c.queuesA, testV4)
					b := newCrowd(t, f, "b", c.lanesB, c.queuesB, rigPeer)
					numberedFlows(t, a, b, rand.New(rand.NewPCG(seed, 1)))
				})
			}
		})
	}
}

func numberedFlows(t *testing.T, a, b *crowd, rnd *rand.Rand) {
	const flows, rounds = 16, 60
	a.up()
	b.up()
	ah := have(a.pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(rigPeer)}))(t)
	var sent [flows]uint32
	var all uint64
	for range rounds {
		for range rnd.IntN(100) {
			flow := byte(rnd.IntN(flows))
			a.send(ah, b.qp.Num(), flow, sent[flow])
			sent[flow]++
			all++
		}
		switch rnd.IntN(6) {
		case 0: // the owners have taken all completions before the reset drops them
			b.to(hca.QPErr)
			synctest.Wait()
			for range rnd.IntN(3) {
				a.send(ah, b.qp.Num(), 0, sent[0])
				sent[0]++
				all++
			}
			synctest.Wait()
			b.to(hca.QPReset)
			b.up()
		case 1:
			time.Sleep(time.Millisecond)
		case 2:
			synctest.Wait()
		}
	}
	// A message may wait soleLimit for a receive, and the transport keeps the others meanwhile.
	synctest.Wait()
	for end := time.Now().Add(1000 * soleLimit); b.counted("rx_packets") < all && time.Now().Before(end); {
		time.Sleep(soleLimit)
		synctest.Wait()
	}
	var ends uint64
	for _, end := range rxEnds {
		ends += b.dev.count(end)
	}
	for _, end := range rxReasons {
		ends += b.dev.countReason(end)
	}
	if got := b.counted("rx_packets"); got != all || ends != all || b.got != b.counted("rx_delivered") {
		t.Errorf("%d sent: %d arrived, %d delivered or dropped; the owners got %d of %d delivered",
			all, got, ends, b.got, b.counted("rx_delivered"))
	}
	if b.got < all/2 {
		t.Errorf("only %d of %d were delivered", b.got, all)
	}
	if err := ah.Close(); err != nil {
		t.Error(err)
	}
	a.finish()
	b.finish()
}

// With fewer lanes than queues, only the owners of queues that get messages from the wire read
// it: another owner would keep the turn, while the receives of the first queue run out.
func TestQueuesWithoutALaneDoNotReceive(t *testing.T) {
	f := memfabric.New(1)
	c := newCrowd(t, f, "a", 2, 4, testV4)
	for i, pair := range c.cqs {
		if got, want := pair.Recv.(*CQ).receives.Load(), i < 2; got != want {
			t.Errorf("queue %d of 2 lanes receives: %v, want %v", i, got, want)
		}
	}
	c.finish()
}
