package process

import (
	"os"
	"slices"
	"testing"
)

const someMaps = `00400000-00452000 r-xp 00000000 08:02 173521                             /usr/sbin/with a space
00452000-00460000 ---p 00052000 08:02 173521                             /usr/sbin/no access
00460000-00461000 rw-p 00060000 08:02 173521                             /usr/lib/gone.so (deleted)
c000000000-c000400000 rw-p 00000000 00:00 0
7ffd0000-7ffd1000 r-xp 00000000 00:00 0                                  [vdso]
7ffe0000-7ffdffff r--p 00000000 08:02 7                                  /backwards
7fff0000-zz r--p 00000000 08:02 7                                        /not hexadecimal
`

func TestFiles(t *testing.T) {
	want := []mapping{
		{0x400000, 0x452000, "/usr/sbin/with a space"},
		{0x460000, 0x461000, "/usr/lib/gone.so (deleted)"},
	}
	if got := files([]byte(someMaps)); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFilesOfThisProcess(t *testing.T) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files(maps), func(m mapping) bool { return m.path == self }) {
		t.Errorf("%s is not mapped:\n%s", self, maps)
	}
}
