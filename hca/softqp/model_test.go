package softqp

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// model is the QP according to the contract, with one state and two lists. It predicts
// the result of any sequence of verbs and packets.
type model struct {
	state        hca.QPState
	sends, recvs []request
	sent, rcvd   []outcome // completions not read yet
	unsettled    bool      // Settle has not yet moved the send side to ERR
}

type request struct {
	id  uint64
	bad hca.WCStatus // the status with which it fails; WCSuccess: it does not fail
}

// sendState returns the state of the send side.
func (m *model) sendState() hca.QPState {
	if m.unsettled {
		return hca.QPRTS
	}
	return m.state
}

func (m *model) become(s hca.QPState) {
	m.state, m.unsettled = s, false
	switch s {
	case hca.QPReset:
		*m = model{}
	case hca.QPErr:
		m.flush(&m.sends, &m.sent)
		m.flush(&m.recvs, &m.rcvd)
	default:
	}
}

func (m *model) flush(reqs *[]request, out *[]outcome) {
	for _, r := range *reqs {
		*out = append(*out, outcome{r.id, hca.WCWRFlushErr})
	}
	*reqs = nil
}

// post returns the expected error of a post of r.
func (m *model) post(r request, b hca.QueueBehaviour, reqs *[]request, out *[]outcome) error {
	switch {
	case b == hca.QueueRefuses:
		return hca.ErrInvalid
	case b == hca.QueueFlushes:
		*out = append(*out, outcome{r.id, hca.WCWRFlushErr})
	case len(*reqs) == modelDepth:
		return hca.ErrQueueFull
	default:
		*reqs = append(*reqs, r)
	}
	return nil
}

// transmit completes the first n good sends. If a bad send follows them, it completes that
// too.
func (m *model) transmit(n int) {
	for i := 0; len(m.sends) > 0; i++ {
		r := m.sends[0]
		if r.bad == hca.WCSuccess && i == n {
			return
		}
		m.sends = m.sends[1:]
		m.sent = append(m.sent, outcome{r.id, r.bad})
		if r.bad != hca.WCSuccess {
			m.state = hca.QPSQE
			m.flush(&m.sends, &m.sent)
		}
	}
}

// deliver reports whether a packet with the right keys is received.
func (m *model) deliver() bool {
	if m.state.RecvQueue() != hca.QueueRuns || len(m.recvs) == 0 {
		return false
	}
	r := m.recvs[0]
	m.recvs = m.recvs[1:]
	m.rcvd = append(m.rcvd, outcome{r.id, r.bad})
	if r.bad != hca.WCSuccess {
		wasSend := m.state
		m.state = hca.QPErr
		m.flush(&m.recvs, &m.rcvd)
		m.unsettled = wasSend.SendQueue() != hca.QueueFlushes
	}
	return r.bad == hca.WCSuccess
}

const modelDepth = 4

// machine drives a QP and its model in parallel. It calls Settle immediately after every
// packet; other tests check the time before Settle.
type machine struct {
	*rig
	m      model
	nextID uint64
}

func (c *machine) Post(t *rapid.T) {
	c.nextID++
	r := request{id: c.nextID}
	n := rapid.SampledFrom([]int{0, 5, 1448, 1449, rigMem + 1}).Draw(t, "bytes")
	switch {
	case n > rigMem:
		r.bad = hca.WCLocProtErr
	case n > 1448:
		r.bad = hca.WCLocLenErr
	}
	want := c.m.post(r, c.m.sendState().SendQueue(), &c.m.sends, &c.m.sent)
	wr := hca.SendWR{ID: r.id, SGList: []hca.SGE{c.txSGE(0, n)}}
	if got := c.PostSend(&wr, ahTo(peer4)); !errors.Is(got, want) {
		t.Fatalf("post send: %v, want %v", got, want)
	}
}

func (c *machine) Receive(t *rapid.T) {
	c.nextID++
	r := request{id: c.nextID}
	n := rapid.SampledFrom([]int{0, hca.GRHLen + 3, hca.GRHLen + 4, 500}).Draw(t, "bytes")
	if n < hca.GRHLen+4 {
		r.bad = hca.WCLocLenErr
	}
	want := c.m.post(r, c.m.state.RecvQueue(), &c.m.recvs, &c.m.rcvd)
	if got := c.PostRecv(&hca.RecvWR{ID: r.id, SGList: []hca.SGE{c.rxSGE(0, n)}}); !errors.Is(got, want) {
		t.Fatalf("post receive: %v, want %v", got, want)
	}
}

func (c *machine) Transmit(t *rapid.T) {
	c.Fill(c.env, nil, Limits{}, &c.batch)
	n := rapid.IntRange(0, len(c.batch.Trains())).Draw(t, "taken")
	if c.m.sendState().SendQueue() == hca.QueueRuns {
		c.m.transmit(n)
	}
	c.Finish(&c.batch, n)
}

func (c *machine) Packet(t *rapid.T) {
	in := inbound("four")
	wrong := rapid.Bool().Draw(t, "wrong key")
	if wrong {
		in.QKey++
	}
	want := !wrong && c.m.deliver()
	if got := c.Deliver(c.env, in) == Passed; got != want {
		t.Fatalf("delivered %v, want %v", got, want)
	}
	c.Settle()
	if c.m.unsettled {
		c.m.become(hca.QPErr)
	}
}

func (c *machine) Move(t *rapid.T) {
	to := hca.QPState(rapid.IntRange(0, int(hca.NumQPState)-1).Draw(t, "state"))
	err := c.step(c.m.state, to)
	if allowed := hca.UDTransition(c.m.state, to).Allowed; allowed != (err == nil) {
		t.Fatalf("%v to %v: %v, want it allowed %v", c.m.state, to, err, allowed)
	}
	if err == nil {
		c.m.become(to)
	}
}

func (c *machine) Take(t *rapid.T) {
	if got := outcomes(c.SendDone()); !slices.Equal(got, c.m.sent) {
		t.Fatalf("send completions %v, want %v", got, c.m.sent)
	}
	if got := outcomes(c.RecvDone()); !slices.Equal(got, c.m.rcvd) {
		t.Fatalf("receive completions %v, want %v", got, c.m.rcvd)
	}
	c.m.sent, c.m.rcvd = nil, nil
}

// Check compares the QP with the model after every step.
func (c *machine) Check(t *rapid.T) {
	if got := c.Query().State; got != c.m.state {
		t.Fatalf("state %v, want %v", got, c.m.state)
	}
	if c.waiting() != len(c.m.sends) || c.QP.recv.queue.len() != len(c.m.recvs) {
		t.Fatalf("%d sends and %d receives wait, want %d and %d",
			c.waiting(), c.QP.recv.queue.len(), len(c.m.sends), len(c.m.recvs))
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		spec := defaultSpec()
		spec.SendWRs, spec.RecvWRs = modelDepth, modelDepth
		c := &machine{rig: newRig(t, spec)}
		if rapid.Bool().Draw(rt, "start in RTS") {
			c.up(hca.QPRTS)
			c.m.state = hca.QPRTS
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": c.Check, "post": c.Post, "receive": c.Receive, "transmit": c.Transmit,
			"packet": c.Packet, "move": c.Move, "take": c.Take,
		})
	})
}
