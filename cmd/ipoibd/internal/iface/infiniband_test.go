package iface

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
	"ipoibd/neigh/sa/satest"
	"ipoibd/ud/ipoib"
)

// ibSubnet is an InfiniBand subnet with a naive subnet manager at LID 1.
type ibSubnet struct {
	t      *testing.T
	fabric *memfabric.Fabric
	*memsubnet.Subnet
	sa     *satest.SA
	lost   atomic.Bool   // every MAD to the SA is lost
	refuse atomic.Uint32 // the status of the answer to every join, a mad.Status; 0: the SA's own
}

// broadcast is the broadcast group of the default partition.
var broadcast = ipoib.BroadcastMGID(ipoib.ScopeLinkLocal, hca.PKeyDefault)

func newSubnet(t *testing.T) *ibSubnet {
	s := &ibSubnet{t: t, fabric: newFabric(t, 1), sa: satest.New()}
	s.Subnet = memsubnet.New(s.fabric, memsubnet.SM{LID: 1, SL: 2, SA: s, Fate: func(_ []byte, toSA bool) (time.Duration, bool) {
		return 0, toSA && s.lost.Load()
	}})
	s.sa.Serve(s.Subnet)
	t.Cleanup(s.Close)
	return s
}

// Answer implements [memsubnet.SA].
func (s *ibSubnet) Answer(from uint16, gid hca.GID, request []byte) [][]byte {
	var h mad.SA
	if h.Parse(request) != nil || s.refuse.Load() == 0 || h.Attribute != mad.AttrMCMemberRecord {
		return s.sa.Answer(from, gid, request)
	}
	out := slices.Clone(request)
	h.Status, h.Method = mad.Status(s.refuse.Load()), h.Method.Response()
	h.Put(out)
	return [][]byte{out}
}

// host starts host n, with LID 8n.
func (s *ibSubnet) host(n byte) *testHost {
	s.t.Helper()
	h := bareHost(s.t, s.fabric, n)
	h.port = s.Attach(h.name, h.guid(), uint16(n)*8)
	s.sa.SetPort(h.port.Attr().GIDs[0].GID, h.port.Attr().LID)
	h.run()
	return h
}

// onSubnet runs a test with two hosts of a subnet that has a group for the default partition.
func onSubnet(t *testing.T, test func(t *testing.T, s *ibSubnet, a, b *testHost)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubnet(t)
		s.sa.SetPartition(hca.PKeyDefault, 2048, 0x1234, 3)
		a, b := s.host(1), s.host(2)
		a.up()
		b.up()
		a.resolve(b.ip)
		test(t, s, a, b)
	})
}

// Two hosts reach each other by what the subnet administrator says: the group's Q_Key and MTU, paths by LID, and no GRH.
func TestInfiniBandHostsReachEachOther(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		reach(t, a, b)
		st := a.status()
		if st.State != report.InterfaceUp || !st.Carrier || st.MTU != 2044 || st.QP == nil || st.QP.QKey != 0x1234 || st.Detail != "" {
			t.Errorf("status: %+v, queue pair %+v", st, st.QP)
		}
		if got := s.sa.Members(broadcast); !slices.Equal(got, []uint16{8, 16}) {
			t.Errorf("members of the broadcast group: LIDs %v", got)
		}
		if n := s.sa.Asked()[satest.Request{Method: mad.MethodGet, About: b.port.Attr().GIDs[0].GID}]; n != 1 {
			t.Errorf("%d queries for the path to b", n)
		}
	})
}

// There is no carrier before the port is a member of the broadcast group, and the status says why.
func TestInfiniBandWaitsForTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubnet(t)
		a := s.host(1)
		a.tap.SetUp(true)
		time.Sleep(5 * time.Second)
		if st := a.status(); st.Carrier || st.State != report.InterfaceWaiting || !strings.Contains(st.Detail, "flag ipoib") {
			t.Errorf("status without a group: %s %s %q", st.State, st.Reason, st.Detail)
		}
		s.sa.SetPartition(hca.PKeyDefault, 2048, 0x1234, 0)
		a.up()
	})
}

// A subnet manager that begins again forgets all memberships, and has other MLIDs: the hosts join again after
// CLIENT_REREGISTER, and reach each other without another queue pair.
func TestInfiniBandSubnetManagerRestarts(t *testing.T) {
	onSubnet(t, func(t *testing.T, s *ibSubnet, a, b *testHost) {
		before := a.status()
		s.sa.Restart()
		for _, h := range []*testHost{a, b} {
			h.port.Emit(hca.EventClientReregister)
		}
		time.Sleep(2 * time.Second)
		if got := s.sa.Members(broadcast); !slices.Equal(got, []uint16{8, 16}) {
			t.Errorf("members of the broadcast group: LIDs %v", got)
		}
		reach(t, a, b)
		if n := hears(t, a, b); n != 1 {
			t.Errorf("%d multicast packets arrived", n)
		}
		if after := a.status(); after.QP.QPN != before.QP.QPN || after.QP.Generation != before.QP.Generation {
			t.Errorf("queue pair %+v, was %+v", after.QP, before.QP)
		}
	})
}

// A port that becomes a limited member of the partition reaches a full one. Its queue pair, which does not receive its
// own probes any more, is not taken for a frozen one.
func TestInfiniBandLimitedMember(t *testing.T) {
	onSubnet(t, func(t *testing.T, _ *ibSubnet, a, b *testHost) {
		a.port.Change(func(attr *hca.PortAttr) { attr.PKeys = []hca.PKey{hca.PKeyDefault &^ hca.PKeyMembership} })
		time.Sleep(5 * time.Second)
		before := a.status()
		time.Sleep(time.Minute)
		after := a.status()
		if before.QP == nil || after.QP == nil || after.QP.Generation != before.QP.Generation {
			t.Errorf("queue pair %+v after a minute, was %+v", after.QP, before.QP)
		}
		reach(t, a, b)
	})
}
