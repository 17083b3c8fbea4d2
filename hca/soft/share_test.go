package soft

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/softqp"
)

// otherPort is the source port of another device that shares the port's addresses.
const otherPort = 0xd001

// sharing configures a device with the QPNs 0x100000 to 0x10ffff.
func sharing(c *Config) {
	c.QPNs = softqp.QPNs{First: 0x100000, Last: 0x10ffff}
	own := c.Transport.SrcPort()
	ports := []uint16{own, otherPort}
	c.Sharers = func() []uint16 { return ports }
}

// A device that shares its addresses creates QPs with its own numbers only.
func TestSharerHasItsOwnQPNs(t *testing.T) {
	bubble(t, sharing, func(r *rig) {
		for range 1000 {
			r.dev.mu.Lock()
			n := r.dev.newQPN(0)
			r.dev.mu.Unlock()
			if !r.dev.cfg.QPNs.Contain(n) {
				t.Fatalf("QPN %v", n)
			}
		}
	})
}

// A message to the port's own address is sent on the wire if its QPN is in the range of another
// device. If the QPN is in this device's own range, the message is looped back, even if no QP has
// that number.
func TestSharerSendsToTheOthers(t *testing.T) {
	bubble(t, sharing, func(r *rig) {
		var sent []hca.QPN
		r.fabric.Capture(func(c memfabric.Capture) {
			var u roce.UDSend
			err := u.Parse(c.Packet.Data)
			if err != nil {
				t.Error(err)
			}
			sent = append(sent, u.DestQPN)
		})
		ah := r.ah(testV4)
		defer ah.Close()
		for i, to := range []hca.QPN{0x200000, 0x0fffff, 0x110000, r.qp.Num(), 0x100000} {
			wr := hca.SendWR{ID: uint64(i), SGList: []hca.SGE{r.mr.SGE(0, 64)}, UD: hca.UDDest{AH: ah, QPN: to, QKey: rigQKey}}
			if _, err := r.qp.PostSend([]hca.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(sent) != 3 || sent[0] != 0x200000 || sent[1] != 0x0fffff || sent[2] != 0x110000 {
			t.Errorf("messages on the wire to %v", sent)
		}
		if n := r.counted("tx_looped"); n != 2 {
			t.Errorf("%d messages were looped back, want 2", n)
		}
	})
}

// Of the datagrams with the port's own address, a device receives those of the devices that
// share it. Its own multicast, which comes back, is counted apart from forged datagrams. A
// datagram for another device's QPN does not make its sender a stray.
func TestSharerReceivesFromTheOthers(t *testing.T) {
	bubble(t, sharing, func(r *rig) {
		r.postRecv(8)
		group := hca.MulticastGroup{MGID: hca.GIDFromAddr(netip.MustParseAddr("239.9.9.9"))}
		if err := r.qp.AttachMulticast(group); err != nil {
			t.Fatal(err)
		}
		inject := func(port uint16, dst netip.Addr, to hca.QPN) {
			r.port.Inject(r.message(func(h *roce.BTH, _ *roce.DETH, p *roce.Path) {
				p.Src, p.SrcPort, p.Dst, h.DestQPN = testV4, port, dst, to
			}))
			synctest.Wait()
		}
		inject(otherPort, testV4, r.qp.Num())
		inject(otherPort, group.MGID.Addr(), hca.QPNMulticast)
		r.wantCounts(map[string]uint64{"rx_delivered": 2, "rx_own_source": 0})
		inject(r.port.SrcPort(), group.MGID.Addr(), hca.QPNMulticast)
		r.wantCounts(map[string]uint64{"rx_delivered": 2, "rx_own_multicast": 1})
		inject(otherPort+1, testV4, r.qp.Num())
		inject(otherPort+1, group.MGID.Addr(), hca.QPNMulticast)
		r.wantCounts(map[string]uint64{"rx_delivered": 2, "rx_own_source": 2})

		inject(otherPort, testV4, 0x200000)
		if s, _ := r.dev.Strays(); s != (hca.Strays{}) {
			t.Errorf("strays %+v, want none", s)
		}
		inject(otherPort, testV4, r.qp.Num()^1)
		if s, _ := r.dev.Strays(); s == (hca.Strays{}) {
			t.Error("no stray for a QPN of this device")
		}
		r.wantCounts(map[string]uint64{"rx_drop_no_qp": 2})
		if err := r.qp.DetachMulticast(group); err != nil {
			t.Fatal(err)
		}
	})
}
