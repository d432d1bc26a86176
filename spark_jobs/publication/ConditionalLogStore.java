package sparkjobs;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A log store for Delta tables in S3 whose commits are conditional writes: of several writers of one version, in any process, the store
 * lets one succeed. Delta's own log store for S3 takes a lock inside one JVM instead, and replaces what another process has committed.
 *
 * S3A repeats a write whose answer was lost, and is then refused because of its own first try. So each write has a random id in the
 * object's metadata, and a writer that is refused looks whose object it is.
 *
 * Spark's Janino compiles this file, so it has no generics and no multi-catch.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String WRITE_ID = "spark-jobs-write";

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
}
