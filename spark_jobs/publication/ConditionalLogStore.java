package sparkjobs;

import io.delta.storage.CloseableIterator;
import io.delta.storage.HadoopFileSystemLogStore;
import io.delta.storage.LineCloseableIterator;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.functional.FutureIO;

/**
 * A log store for Delta tables in S3 whose commits are conditional writes: of several writers of one version, in any process, the store
 * lets one succeed. Delta's own log store for S3 takes a lock inside one JVM instead, and replaces what another process has committed.
 *
 * S3A repeats a write whose answer was lost, and is then refused because of its own first try. So each write has a random id in the
 * object's metadata, and a writer that is refused looks whose object it is.
 *
 * A commit that was listed is read with one request. S3A asks for a file's size and ETag before it reads, and the listing has both. The read
 * is bound to the ETag: if the object was replaced since, it is read as without a listing.
 *
 * Spark's Janino compiles this file, so it has no generics and no multi-catch.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String WRITE_ID = "spark-jobs-write";
    private static final int LISTED_AT_MOST = 1000;
    /** The commits that were listed last, by path. */
    private static final Map LISTED = new Listed();

    public ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        String id = UUID.randomUUID().toString();
        FSDataOutputStream out = overwrite.booleanValue() ? files.create(path, true) : create(files, path, id);
        boolean whole = false;
        try {
            while (actions.hasNext()) {
                out.write((((String) actions.next()) + "\n").getBytes(StandardCharsets.UTF_8));
            }
            whole = true;
        } finally {
            if (!whole) {
                out.abort(); // close() would make a part of the commit visible
            }
        }
        try {
            out.close();
        } catch (IOException error) {
            if (overwrite.booleanValue()) {
                throw error;
            }
            String owner = owner(files, path);
            if (id.equals(owner)) {
                return;
            }
            String kind = error.getClass().getSimpleName();
            if (owner != null || kind.equals("RemoteFileChangedException") || kind.equals("FileAlreadyExistsException")) {
                FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
                taken.initCause(error);
                throw taken;
            }
            throw error; // nobody knows whether the store has applied it: Delta's caller reads back
        }
    }

    public Iterator listFrom(Path path, Configuration conf) throws IOException {
        return new Remembering(super.listFrom(path, conf));
    }

    public CloseableIterator read(Path path, Configuration conf) throws IOException {
        FileStatus listed;
        synchronized (LISTED) {
            listed = (FileStatus) LISTED.get(path);
        }
        FileSystem files = path.getFileSystem(conf);
        if (listed == null || !isReadByEtag(listed, files.getConf())) { // its own settings: a bucket may have others
            return super.read(path, conf);
        }
        Future opening = files.openFile(path).withFileStatus(listed).build();
        FSDataInputStream in = (FSDataInputStream) FutureIO.awaitFuture(opening);
        BufferedReader reader = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
        boolean begun = false;
        try {
            reader.mark(1); // S3A makes its request when the first byte is read, and the caller expects that a missing file fails here
            reader.read();
            reader.reset();
            begun = true;
            return new LineCloseableIterator(reader);
        } catch (IOException error) {
            String kind = error.getClass().getSimpleName();
            if (!kind.equals("RemoteFileChangedException") && !kind.equals("FileNotFoundException")) {
                throw error;
            }
            return super.read(path, conf); // the object is another one by now, or gone
        } finally {
            if (!begun) {
                reader.close();
            }
        }
    }

    /** Returns true if S3A binds a read of a listed file to its ETag. Other streams of S3A keep what they have read for other readers. */
    private static boolean isReadByEtag(FileStatus listed, Configuration conf) {
        return listed instanceof EtagSource
            && ((EtagSource) listed).getEtag() != null
            && "classic".equals(conf.get("fs.s3a.input.stream.type"))
            && "etag".equals(conf.get("fs.s3a.change.detection.source", "etag"))
            && "server".equals(conf.get("fs.s3a.change.detection.mode", "server"));
    }

    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return Boolean.FALSE;
    }

    private static FSDataOutputStream create(FileSystem files, Path path, String id) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.create();
        builder.overwrite(false);
        builder.recursive();
        builder.must("fs.option.create.conditional.overwrite", "true"); // a file system that does not know it fails here
        builder.must("fs.s3a.create.header." + WRITE_ID, id);
        return (FSDataOutputStream) builder.build();
    }

    /** Returns the id of the write that has made an object; null if there is no object, or it has none. */
    private static String owner(FileSystem files, Path path) {
        try {
            byte[] found = files.getXAttr(path, "header." + WRITE_ID);
            return found == null ? null : new String(found, StandardCharsets.UTF_8);
        } catch (IOException error) {
            return null;
        } catch (UnsupportedOperationException error) {
            return null;
        }
    }

    /** Remembers the last commits that are put into it. */
    private static final class Listed extends LinkedHashMap {
        protected boolean removeEldestEntry(Map.Entry eldest) {
            return size() > LISTED_AT_MOST;
        }
    }

    /** Passes a listing on, and remembers its commits. */
    private static final class Remembering implements Iterator {
        private final Iterator listing;

        Remembering(Iterator listing) {
            this.listing = listing;
        }

        public boolean hasNext() {
            return listing.hasNext();
        }

        public Object next() {
            FileStatus file = (FileStatus) listing.next();
            if (file.getPath().getName().endsWith(".json")) {
                synchronized (LISTED) {
                    LISTED.remove(file.getPath());
                    LISTED.put(file.getPath(), file);
                }
            }
            return file;
        }
    }
}
