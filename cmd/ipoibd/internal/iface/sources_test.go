package iface

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// A host whose sources are checked neither takes over the address of another host, by ARP or by adding it, nor
// sends from it; nor does it take a link-local address other than that of its MAC. Its own address works, and so does all of that once the check is off.
func TestSourceCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, b, victim := newHost(t, fabric, 1), newHost(t, fabric, 2), newHost(t, fabric, 3)
		cfg := testConfig()
		cfg.Addresses, cfg.SourceCheck = []string{a.ip.String() + "/24"}, true
		if err := a.iface.Change(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*testHost{a, b, victim} {
			h.up()
		}
		for _, to := range []*testHost{a, victim} {
			b.resolve(to.ip)
		}
		a.resolve(b.ip)
		reach(t, a, b)
		drops := func() uint64 { return count(a.status(), "tx_drop_foreign_source") }
		owner := func() string {
			b.resolve(victim.ip)
			mac, _ := b.neighbour(victim.ip)
			for _, p := range b.status().Peers {
				if p.MAC == mac.String() {
					return p.GID.String()
				}
			}
			return "none"
		}
		honest := owner()
		if n := drops(); n != 0 {
			t.Fatalf("%d honest frames dropped", n)
		}

		claim := ipoib.EtherARP{Op: 2, SHA: a.mac(), SPA: victim.ip, TPA: victim.ip}.Append(nil)
		a.send(ipoib.Broadcast, ipoib.EtherTypeARP, claim)
		synctest.Wait()
		mac, _ := a.neighbour(b.ip)
		spoofed := a.packet(b.ip, 100, 1)
		copy(spoofed[12:], victim.ip.AsSlice())
		a.send(mac, ipoib.EtherTypeIPv4, spoofed)
		if f := b.takeIP(); f != nil || drops() != 2 {
			t.Errorf("%d frames dropped, %x arrived", drops(), f)
		}
		time.Sleep(time.Minute + time.Second) // the own address is announced several times, and the status shows it a little later
		before := count(a.status(), "neigh_announcements")
		router := netip.MustParseAddr("fe80::1")
		a.tap.AddAddr(netip.PrefixFrom(victim.ip, 24))
		a.tap.AddAddr(netip.PrefixFrom(router, 64))
		time.Sleep(time.Second)
		synctest.Wait()
		if n := count(a.status(), "neigh_announcements"); n != before {
			t.Errorf("the daemon announced %d addresses", n-before)
		}
		if now := owner(); now != honest {
			t.Errorf("%s belongs to %s, was %s", victim.ip, now, honest)
		}
		for ip, want := range map[netip.Addr]uint64{router: 1, a.mac().LinkLocal(): 0} {
			before := drops()
			packet := make([]byte, 48)
			packet[0], packet[6] = 0x60, 59 // no next header
			copy(packet[8:], ip.AsSlice())
			a.send(mac, ipoib.EtherTypeIPv6, packet)
			synctest.Wait()
			if n := drops() - before; n != want {
				t.Errorf("%d packets from %s dropped, want %d", n, ip, want)
			}
		}
		checkAccounts(t, a.status())

		cfg.SourceCheck = false
		if err := a.iface.Change(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		a.send(mac, ipoib.EtherTypeIPv4, spoofed)
		if f := b.takeIP(); f == nil {
			t.Error("without the check, the frame is dropped as well")
		}
	})
}

// A lane that replaces one which hangs in the device checks the sources from its first frame on, before the
// kernel reports anything about ib0.
func TestSourceCheckOfARenewedLane(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		cfg := testConfig()
		cfg.Addresses, cfg.SourceCheck = []string{a.ip.String() + "/24"}, true
		if err := a.iface.Change(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		reach(t, a, b)
		mac, _ := a.neighbour(b.ip)
		spoofed := a.packet(b.ip, 100, 2)
		copy(spoofed[12:], netip.MustParseAddr("10.0.0.99").AsSlice())
		a.onRun(func(f *Iface) {
			if err := f.lanes.halt(); err != nil {
				t.Fatal(err)
			}
			f.lanes.all[0].lost = hca.ErrStuck
			if err := f.lanes.renew(); err != nil {
				t.Fatal(err)
			}
			tx, q := f.lanes.all[0].tx, f.fabric.att.ep.Queues[0]
			if err := tx.Attach(q.Queue, q.SendCQ, q.SendMR, 0, f.fabric.att.gen); err != nil {
				t.Fatal(err)
			}
			a.send(mac, ipoib.EtherTypeIPv4, spoofed)
			if err := tx.Pump(); err != nil {
				t.Fatal(err)
			}
		})
		if n := count(a.status(), "tx_drop_foreign_source"); n != 1 {
			t.Errorf("%d frames dropped, want 1", n)
		}
		a.deviceReset()
		reach(t, a, b)
	})
}
