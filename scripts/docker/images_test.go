package docker

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Images.
const (
	staticImage = "ipoibd"        // of make image
	debianImage = "ipoibd:debian" // of make image
	appImage    = "app"           // programs of this machine, and the intruder
	busybox     = "busybox"       // stands for the image of that name
	intruder    = "/usr/bin/intruder"
)

// root is the top directory of the tree.
const root = "../.."

// makeImages makes all images.
func makeImages(t *testing.T, e *engine) {
	t.Helper()
	importImage(t, e, busybox, busyboxRoot(t))
	importImage(t, e, appImage, appRoot(t))
	e.makeImage(t)
}

// makeImage runs "make image" with further arguments.
func (e *engine) makeImage(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory", "image"}, args...)...)
	cmd.Dir, cmd.Env = root, append(e.env, "MAKEFLAGS=", "MAKELEVEL=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make image %q: %v\n%s", args, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "image: ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// importImage imports the root of a file system as an image.
func importImage(t *testing.T, e *engine, name string, files *rootfs) {
	t.Helper()
	cmd := e.command("import", "-", name)
	cmd.Stdin = files.close(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import %s: %v\n%s", name, err, out)
	}
}

// appRoot has the programs of the tests.
func appRoot(t *testing.T) *rootfs {
	t.Helper()
	r := newRootfs()
	for _, name := range []string{"cat", "grep", "id", "ip", "iperf3", "mknod", "ping", "sh", "sleep", "ss"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("find a program: %v", err)
		}
		r.program(t, "/usr/bin/"+name, path)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.program(t, intruder, self)
	r.folder(t, "tmp", 0o1777) // for iperf3
	return r
}

// busyboxRoot has the commands of README's example.
func busyboxRoot(t *testing.T) *rootfs {
	t.Helper()
	r := newRootfs()
	r.program(t, "/bin/busybox", "/bin/busybox")
	for _, applet := range []string{"ping", "sh", "sleep"} {
		r.link(t, "/bin/"+applet, "busybox")
	}
	return r
}

// rootfs is the root of a file system, as an archive.
type rootfs struct {
	buf  bytes.Buffer
	tar  *tar.Writer
	have map[string]bool
}

func newRootfs() *rootfs {
	r := &rootfs{have: map[string]bool{}}
	r.tar = tar.NewWriter(&r.buf)
	return r
}

// close returns the archive.
func (r *rootfs) close(t *testing.T) io.Reader {
	t.Helper()
	if err := r.tar.Close(); err != nil {
		t.Fatal(err)
	}
	return &r.buf
}

// libraries matches the files that ldd lists.
var libraries = regexp.MustCompile(`/\S+`)

// program adds a program of this machine under another path, and the libraries that it loads.
func (r *rootfs) program(t *testing.T, as, path string) {
	t.Helper()
	r.file(t, as, path)
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return // it is static
	}
	for _, library := range libraries.FindAllString(string(out), -1) {
		r.file(t, library, library)
	}
}

// file adds a file of this machine.
func (r *rootfs) file(t *testing.T, as, path string) {
	t.Helper()
	if r.have[as] {
		return
	}
	r.have[as] = true
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r.add(t, &tar.Header{Name: as[1:], Mode: 0o755, Size: int64(len(text))}, text)
}

func (r *rootfs) link(t *testing.T, as, target string) {
	t.Helper()
	r.add(t, &tar.Header{Name: as[1:], Typeflag: tar.TypeSymlink, Linkname: target}, nil)
}

func (r *rootfs) folder(t *testing.T, name string, mode int64) {
	t.Helper()
	r.add(t, &tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}, nil)
}

func (r *rootfs) add(t *testing.T, header *tar.Header, text []byte) {
	t.Helper()
	err := r.tar.WriteHeader(header)
	if err == nil {
		_, err = r.tar.Write(text)
	}
	if err != nil {
		t.Fatal(err)
	}
}
