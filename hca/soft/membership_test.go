package soft

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// lockedHost is a transport on a host whose lock of all interfaces is held.
type lockedHost struct {
	transport.Transport
	unlocked chan struct{}
}

func (l *lockedHost) Join(group netip.Addr) error {
	<-l.unlocked
	return l.Transport.Join(group)
}

func (l *lockedHost) Leave(group netip.Addr) error {
	<-l.unlocked
	return l.Transport.Leave(group)
}

// Only the verbs about groups wait while another process holds the kernel's lock of all interfaces:
// a device that answers no other verb would be reset (R7).
func TestR07LockedHostDelaysOnlyGroups(t *testing.T) {
	group := hca.MulticastGroup{MGID: hca.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))}
	for _, c := range []struct {
		name string
		call func(hca.QP) error
	}{
		{"attach", func(q hca.QP) error { return q.AttachMulticast(group) }},
		{"detach", func(q hca.QP) error { return q.DetachMulticast(group) }},
	} {
		host := &lockedHost{}
		lock := func(c *Config) {
			host.Transport, host.unlocked = c.Transport, make(chan struct{})
			c.Transport = host
		}
		bubble(t, lock, func(r *rig) {
			if c.name == "detach" {
				close(host.unlocked)
				if err := r.qp.AttachMulticast(group); err != nil {
					r.Fatal(err)
				}
				host.unlocked = make(chan struct{})
			}
			ended := make(chan error, 1)
			go func() { ended <- c.call(r.qp) }()
			synctest.Wait()
			if len(ended) > 0 {
				r.Fatalf("%s did not wait", c.name)
			}
			if _, err := r.dev.QueryPort(1); err != nil {
				r.Error(err)
			}
			if _, err := r.qp.Query(); err != nil {
				r.Error(err)
			}
			pd := have(r.dev.AllocPD())(r)
			cq := have(r.dev.CreateCQ(hca.CQSpec{Entries: 1}))(r)
			for _, c := range []interface{ Close() error }{cq, pd} {
				if err := c.Close(); err != nil {
					r.Error(err)
				}
			}
			close(host.unlocked)
			if err := <-ended; err != nil {
				r.Errorf("%s: %v", c.name, err)
			}
			if c.name == "attach" {
				if err := r.qp.DetachMulticast(group); err != nil {
					r.Error(err)
				}
			}
		})
	}
}
