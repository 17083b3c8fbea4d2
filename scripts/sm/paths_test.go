package sm

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/neigh/sa"
	"ipoibd/scripts/vm/ibwire"
)

// others is how many ports are asked for.
const others = 200

// pathsLimit bounds the time for all paths: ten times the 30 s that they may take.
const pathsLimit = 300 * time.Second

// A thousand paths, to 200 ports, are asked for at once, while osmtest floods the SA, half of the requests are lost and
// some answered with BUSY. All are found; at most 16 requests are outstanding, and the port stays a member of its group.
func TestManyPathsFromOpenSM(t *testing.T) {
	s := Start(t, Spec{Hosts: 1, Others: others})
	s.waitUp(smPort)
	inventory := filepath.Join(t.TempDir(), "inventory")
	osmtest := func(args ...string) *program {
		cmd := exec.Command("osmtest", append(args, "-i", inventory, "-l", filepath.Join(t.TempDir(), "log"))...)
		cmd.Env = onSim(toolPort)
		return s.run(cmd)
	}
	made := osmtest("-f", "c")
	s.eventually("osmtest has an inventory", made.over)
	if !bytes.Contains(made.output.Bytes(), []byte(`"Create Inventory" PASS`)) {
		t.Fatalf("osmtest: %s", made.output.Bytes())
	}

	c := newAsker(s, 0)
	broadcast := mgid("ff12:401b:ffff::ffff:ffff")
	c.step(sa.Join{Owner: 1, MGID: broadcast})
	c.until("the port joins", func() bool { return c.joined })
	load := func() *program { return osmtest("-f", "f", "-s", "4") } // 100,000 requests for paths
	flood := load()
	defer func() { flood.kill() }()
	s.SetFaults(Faults{Drop: 50, Busy: 100})
	before := inUse()
	start := time.Now()
	for i := range 5 * others {
		c.step(sa.WantPath{Key: sa.PathKey{DGID: portGID(s.Port(0).Prefix, GUID(1+i%others)), PKey: 0xffff}})
	}
	c.until("all paths are found", func() bool {
		if flood.over() {
			flood = load()
		}
		return len(c.found) == others
	})
	took := time.Since(start)
	grown := inUse() - before
	if len(s.Membership(0, broadcast)) == 0 {
		t.Error("the port is no member of the broadcast group")
	}
	stats := c.client.Stats()
	t.Logf("%d paths after %v; %d requests, %d of them repeated, %d answers, %d times BUSY; at most %d outstanding; %d KiB more in use",
		len(c.found), took.Round(time.Millisecond), stats.Sent, stats.Repeated, stats.Answered, stats.Busy, c.most, grown>>10)
	if c.most > 16 || grown > 4<<20 || stats.Busy == 0 || stats.Repeated == 0 {
		t.Errorf("want fewer outstanding, less memory, or more faults: %+v", stats)
	}
}

// inUse returns the bytes of the heap in use.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// asker is a client of the SA on a host's wire.
type asker struct {
	s      *Subnet
	host   *Host
	lid    uint16
	client *sa.Client
	joined bool
	found  map[sa.PathKey]bool
	most   int          // requests outstanding
	again  []sa.PathKey // those that have failed, to be asked for again, as an interface does
}

// qpn is that of the client's queue pair.
const qpn = 77

func newAsker(s *Subnet, host int) *asker {
	s.tb.Helper()
	c := &asker{s: s, host: s.NewHost(host), client: sa.New(sa.Config{Random: rand.New(rand.NewPCG(1, 2))}), found: map[sa.PathKey]bool{}}
	port := s.Port(host)
	c.lid = port.LID
	c.step(sa.Port{State: hca.PortActive, GID: s.GID(host), LID: port.LID, SMLID: port.SMLID, SubnetTimeout: 18, PKeys: []hca.PKey{0xffff}})
	return c
}

// step hands an event to the client and does what it says.
func (c *asker) step(ev sa.Event) {
	for _, a := range c.client.Step(time.Now(), ev, nil) {
		switch a := a.(type) {
		case sa.Send:
			c.host.Send(&ibwire.Packet{SLID: c.lid, DLID: a.DLID, SL: a.SL, PKey: 0xffff, DestQPN: a.QPN, SrcQPN: qpn, QKey: a.QKey, Payload: a.MAD})
		case sa.Joined:
			c.joined = true
		case sa.PathFound:
			c.found[a.Key] = true
		case sa.PathFailed:
			c.s.tb.Logf("%+v, after %d paths", a, len(c.found))
			c.again = append(c.again, a.Key)
		case sa.JoinFailed:
			c.s.tb.Fatalf("%+v", a)
		}
	}
	c.most = max(c.most, c.client.Stats().Outstanding)
}

// until hands the client what arrives, and the time, until a condition holds.
func (c *asker) until(what string, ok func() bool) {
	c.s.tb.Helper()
	end := time.Now().Add(pathsLimit)
	for !ok() {
		if time.Now().After(end) {
			c.s.tb.Fatalf("%s: not within %v; %d found, %+v", what, pathsLimit, len(c.found), c.client.Stats())
		}
		wait := time.Second
		if at, planned := c.client.NextDeadline(); planned {
			wait = time.Until(at)
		}
		select {
		case p := <-c.host.Packets():
			if p.DestQPN == qpn {
				c.step(sa.Received{MAD: p.Payload, SLID: p.SLID, SrcQPN: p.SrcQPN})
			}
		case <-time.After(wait):
			again := c.again
			c.again = nil
			for _, key := range again {
				c.step(sa.WantPath{Key: key})
			}
			c.step(sa.Tick{})
		}
	}
}
