package subnet

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/hca/mad"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
	"ipoibd/neigh/sa"
	"ipoibd/neigh/sa/satest"
	"ipoibd/ud/ipoib"
)

const (
	ownLID  = 8
	peerLID = 16
	smLID   = 1
)

var (
	broadcast = ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault)
	mdns      = hca.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 13: 0, 14: 0, 15: 0xfb}
)

// rig is a port of a subnet, on whose device faults are injected, and its client. Everything is in a synctest bubble,
// which also finds goroutines that are left.
type rig struct {
	t      *testing.T
	subnet *memsubnet.Subnet
	sa     *satest.SA
	at     *memsubnet.Port // of this host
	peer   *memsubnet.Port // of another host, which has no HCA open
	faults *faults.Device
	dev    *session
	port   *Port
	log    lines
	ended  atomic.Bool // the port has released the session

	lost   atomic.Bool         // all MADs to the SA are lost
	change func([]byte) []byte // of each answer; nil: none
}

// session is an open device that delivers no events. It records address handles, and the queue pair created last.
type session struct {
	*guard.Device

	mu   sync.Mutex
	open []hca.AHSpec // handles
	qpn  hca.QPN
}

func (*session) Watch(hca.ObjectID, func(hca.AsyncEvent)) (stop func()) { return func() {} }

func (s *session) AllocPD() (hca.PD, error) {
	pd, err := s.Device.AllocPD()
	return &recordedPD{pd, s}, err
}

type recordedPD struct {
	hca.PD
	s *session
}

func (p *recordedPD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	ah, err := p.PD.CreateAH(spec)
	if err != nil {
		return nil, err
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.open = append(p.s.open, spec)
	return &recordedAH{ah, p.s}, nil
}

func (p *recordedPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	qp, err := p.PD.CreateQP(spec, send, recv)
	if err != nil {
		return nil, err
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.qpn = qp.Num()
	return &recordedQP{qp}, nil
}

type recordedAH struct {
	hca.AH
	s *session
}

func (a *recordedAH) Close() error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.open = slices.Delete(a.s.open, slices.Index(a.s.open, a.Spec()), slices.Index(a.s.open, a.Spec())+1)
	return a.AH.Close()
}

// recordedQP gives the device its own handles.
type recordedQP struct{ hca.QP }

func (q *recordedQP) PostSend(wrs []hca.SendWR) (int, error) {
	wrs = slices.Clone(wrs)
	for i := range wrs {
		wrs[i].UD.AH = wrs[i].UD.AH.(*recordedAH).AH
	}
	return q.QP.PostSend(wrs)
}

// handles returns the open address handles.
func (s *session) handles() []hca.AHSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

func (s *session) queuePair() hca.QPN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.qpn
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns how many lines contain a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// Answer implements [memsubnet.SA].
func (r *rig) Answer(from uint16, gid hca.GID, request []byte) [][]byte {
	answers := r.sa.Answer(from, gid, request)
	for i := range answers {
		if r.change != nil {
			answers[i] = r.change(answers[i])
		}
	}
	return answers
}

// onPort runs a test with a client whose port is ACTIVE. The subnet has broadcast groups for the default partition and
// for 0x8001. Before the client opens its queue pair, faults are injected.
func onPort(t *testing.T, test func(t *testing.T, r *rig), fs ...faults.Fault) {
	synctest.Test(t, func(t *testing.T) {
		fabric := memfabric.New(1)
		defer fabric.Close()
		r := &rig{t: t, sa: satest.New()}
		r.subnet = memsubnet.New(fabric, memsubnet.SM{LID: smLID, SL: 2, SA: r, Fate: func(_ []byte, toSA bool) (time.Duration, bool) {
			return 0, toSA && r.lost.Load()
		}})
		defer r.subnet.Close()
		r.sa.Serve(r.subnet)
		r.sa.SetPartition(hca.PKeyDefault, 2048, 0x1234, 3)
		r.sa.SetPartition(0x8001, 2048, 0x1234, 4)
		r.at = r.attach("a", ownLID)
		r.peer = r.attach("b", peerLID)
		dev, err := r.at.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		r.faults = faults.Wrap(dev, faults.Options{})
		r.inject(fs...)
		r.dev = &session{Device: guard.Wrap(r.faults, guard.Options{})}
		r.port = Open(r.dev, 1, r.at.Attr(), slog.New(slog.NewTextHandler(&r.log, nil)), func() { r.ended.Store(true) })
		defer r.end()
		synctest.Wait()
		test(t, r)
	})
}

// end stops the client, and closes the device.
func (r *rig) end() {
	r.port.Stop()
	r.faults.Release()
	time.Sleep(time.Minute)
	if !r.ended.Load() {
		r.t.Error("the session is still in use")
	}
	if open := r.dev.handles(); len(open) > 0 {
		r.t.Errorf("address handles are open: %+v", open)
	}
	if err := r.dev.Close(); err != nil && r.dev.Err() == nil {
		r.t.Errorf("close the device: %v", err)
	}
	time.Sleep(time.Minute) // for the goroutines of a device that had failed
}

func (r *rig) attach(name string, lid uint16) *memsubnet.Port {
	p := r.subnet.Attach(name, hca.GUID{2, 0, 0, 0xff, 0xfe, 0, 0, byte(lid)}, lid)
	r.sa.SetPort(p.Attr().GIDs[0].GID, lid)
	return p
}

func (r *rig) inject(fs ...faults.Fault) {
	r.t.Helper()
	for _, f := range fs {
		if err := r.faults.Inject(f); err != nil {
			r.t.Fatal(err)
		}
	}
}

// user returns a user of the default partition.
func (r *rig) user() *User { return r.port.Use(hca.PKeyDefault, func() {}) }

// peerGID is the GID of the other host.
func (r *rig) peerGID() hca.GID { return r.peer.Attr().GIDs[0].GID }

// asked returns how many requests of a kind the SA has got.
func (r *rig) asked(m mad.Method, about hca.GID) int {
	return r.sa.Asked()[satest.Request{Method: m, About: about}]
}

// results returns what a user has got, by kinds of T.
func results[T sa.Action](u *User) (out []T) {
	for _, a := range u.Take() {
		if a, ok := a.(T); ok {
			out = append(out, a)
		}
	}
	return out
}

// until waits for a virtual time until a condition holds, and returns how long that took.
func until(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for synctest.Wait(); !holds(); synctest.Wait() {
		if time.Since(start) >= limit {
			t.Fatalf("after %s: not %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}
