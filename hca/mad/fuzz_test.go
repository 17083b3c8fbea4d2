package mad_test

import (
	"testing"

	"ipoibd/hca/mad"
)

// FuzzParse checks that a MAD that is accepted encodes to the same bytes again, but for reserved bits, which are zero.
func FuzzParse(f *testing.F) {
	add := func(h mad.SA, put func([]byte)) {
		buf := make([]byte, mad.Len)
		h.Put(buf)
		put(buf[mad.DataOffset:])
		f.Add(buf)
	}
	add(mad.NewRequest(mad.MethodGet, mad.AttrClassPortInfo, 1, 0), (&mad.ClassPortInfo{Capability: 0x2602}).Put)
	add(mad.NewRequest(mad.MethodSet, mad.AttrMCMemberRecord, 2, mad.MaskJoin), joined.Put)
	add(mad.NewRequest(mad.MethodGetResp, mad.AttrPathRecord, 3, mad.MaskPath), found.Put)
	f.Fuzz(func(t *testing.T, src []byte) {
		var h mad.SA
		if h.Parse(src) != nil {
			return
		}
		dst := make([]byte, mad.Len)
		h.Put(dst)
		data := src[mad.DataOffset:]
		var err error
		switch h.Attribute {
		case mad.AttrClassPortInfo:
			var c mad.ClassPortInfo
			err = c.Parse(data)
			c.Put(dst[mad.DataOffset:])
		case mad.AttrMCMemberRecord:
			var m mad.MCMember
			err = m.Parse(data)
			m.Put(dst[mad.DataOffset:])
			if m.Check() == nil && m.MLID < 0xc000 {
				t.Fatalf("%+v is accepted", m)
			}
		case mad.AttrPathRecord:
			var p mad.Path
			err = p.Parse(data)
			p.Put(dst[mad.DataOffset:])
			if p.Check() == nil && p.DLID >= 0xc000 {
				t.Fatalf("%+v is accepted", p)
			}
		}
		if err != nil {
			t.Fatalf("%v with all %d bytes: %v", h.Attribute, len(data), err)
		}
		for i, b := range dst {
			if b&^src[i] != 0 {
				t.Fatalf("byte %d is %#x, from %#x", i, b, src[i])
			}
		}
		var again mad.SA
		if err := again.Parse(dst); err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}
